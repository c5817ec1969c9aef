//! What the pages say beside the flags.

use super::variables::CHECKS;
use vramstream::ring::BUDGET_VARIABLE;

pub(super) type Text = &'static str;

/// Of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Notes {
    /// Statuses and what they mean.
    pub(super) exit_status: &'static [(Text, Text)],
    /// Names of variables.
    pub(super) environment: &'static [Text],
    /// Files and what they are.
    pub(super) files: &'static [(Text, Text)],
    /// What is done, and how.
    pub(super) examples: &'static [(Text, Text)],
    /// Other pages.
    pub(super) see_also: Text,
}

const EXIT: &[(Text, Text)] = &[
    ("0", "All of it was done."),
    ("1", "Something failed; standard error says what, and what to do about it."),
    ("2", "The command line is wrong."),
];

const SEE_ALSO: Text = "vramstream(1), vramstream-plugin(7), criu(8)";

const NONE: Notes =
    Notes { exit_status: EXIT, environment: &[], files: &[], examples: &[], see_also: SEE_ALSO };

const GATE_SOCKET: (Text, Text) = (
    "DIR/vramstream-commit.sock",
    "In the images directory: where commit-gate asks the capture for its outcome.",
);
const GPU_SOCKET: (Text, Text) = (
    "DIR/vramstream-gpu.sock",
    "In the images directory: where the CRIU plugin hands over the contents of GPUs.",
);
const SERVE_SOCKET: (Text, Text) =
    ("DIR/streamer-serve.sock", "In the images directory: where CRIU asks for images.");
const TOPOLOGY: (Text, Text) =
    ("/sys/class/kfd/kfd/topology", "The GPUs of this machine and how they are linked.");

/// By the words of the command, joined by hyphens; the program itself is the empty one.
const NOTES: &[(Text, Notes)] = &[
    (
        "",
        Notes {
            environment: &[BUDGET_VARIABLE],
            examples: &[
                ("Is everything here that a checkpoint takes?", "vramstream doctor"),
                (
                    "Move a process to another host. There:",
                    "vramstream -D /run/restore receive --listen 0.0.0.0:7000 &\n\
                     criu restore --stream -D /run/restore --restore-detached",
                ),
                (
                    "Here, where /usr/local/lib/vramstream-commit-gate is a symbolic link to vramstream:",
                    "vramstream -D /run/dump --to tcp://destination:7000 capture &\n\
                     criu dump --stream -D /run/dump -t PID --action-script /usr/local/lib/vramstream-commit-gate",
                ),
            ],
            see_also: "vramstream-doctor(1), vramstream-capture(1), vramstream-serve(1), \
                vramstream-receive(1), vramstream-plugin(7), criu(8)",
            ..NONE
        },
    ),
    (
        "capture",
        Notes {
            environment: &[BUDGET_VARIABLE],
            files: &[
                (
                    "DIR/streamer-capture.sock",
                    "In the images directory: where CRIU brings its images.",
                ),
                GPU_SOCKET,
                GATE_SOCKET,
            ],
            examples: &[
                (
                    "Dump into files, with the process left alone until they are safe:",
                    "vramstream -D /run/dump --to file:/srv/images/1 capture &\n\
                     criu dump --stream -D /run/dump -t PID --action-script /usr/local/lib/vramstream-commit-gate",
                ),
                (
                    "To another host, compressed where that pays:",
                    "vramstream -D /run/dump --to tcp://destination:7000 --compress auto capture",
                ),
            ],
            see_also: "vramstream-commit-gate(1), vramstream-serve(1), vramstream-plugin(7), criu(8)",
            ..NONE
        },
    ),
    (
        "serve",
        Notes {
            environment: &[BUDGET_VARIABLE],
            files: &[SERVE_SOCKET, GPU_SOCKET],
            examples: &[(
                "Restore from files:",
                "vramstream -D /run/restore --from file:/srv/images/1 serve &\n\
                 criu restore --stream -D /run/restore --restore-detached",
            )],
            see_also: "vramstream-capture(1), vramstream-extract(1), vramstream-plugin(7), criu(8)",
            ..NONE
        },
    ),
    (
        "extract",
        Notes {
            files: &[(
                "DIR/*.img",
                "In the images directory: all files of the image, or none of them.",
            )],
            examples: &[(
                "Restore without a streamer:",
                "vramstream -D /srv/extracted --from file:/srv/images/1 extract\n\
                 criu restore -D /srv/extracted --restore-detached",
            )],
            see_also: "vramstream-serve(1), vramstream-inspect(1), criu(8)",
            ..NONE
        },
    ),
    (
        "receive",
        Notes {
            environment: &[BUDGET_VARIABLE],
            files: &[SERVE_SOCKET, GPU_SOCKET],
            examples: &[
                (
                    "Wait for an image, and give it to CRIU:",
                    "vramstream -D /run/restore receive --listen 0.0.0.0:7000 &\n\
                     criu restore --stream -D /run/restore --restore-detached",
                ),
                (
                    "Write its files into a directory:",
                    "vramstream -D /srv/extracted receive --listen 0.0.0.0:7000 --extract",
                ),
            ],
            see_also: "vramstream-capture(1), vramstream-serve(1), vramstream-extract(1)",
            ..NONE
        },
    ),
    (
        "verify",
        Notes {
            exit_status: &[
                ("0", "The image is complete and intact."),
                (
                    "1",
                    "It is not, or it cannot be read; standard error says which file, and where in it.",
                ),
                ("2", "The command line is wrong."),
            ],
            examples: &[("Before an image is needed:", "vramstream verify /srv/images/1")],
            see_also: "vramstream-inspect(1)",
            ..NONE
        },
    ),
    (
        "inspect",
        Notes {
            examples: &[("For a program:", "vramstream inspect /srv/images/1 --json")],
            see_also: "vramstream-verify(1)",
            ..NONE
        },
    ),
    (
        "plan",
        Notes {
            exit_status: &[
                ("0", "It can be restored."),
                ("1", "It cannot, or something failed; what and why is told."),
                ("2", "The command line is wrong."),
            ],
            environment: &[CHECKS],
            files: &[
                (
                    "amdgpu-kfd-N.img",
                    "What CRIU's plugin knows of a process and the GPUs that it saw.",
                ),
                TOPOLOGY,
            ],
            examples: &[
                ("Can this be restored here?", "vramstream plan --from /srv/extracted"),
                (
                    "Could what runs here be restored there? With a copy of the other machine's topology:",
                    "vramstream plan --from /sys/class/kfd/kfd/topology --to there/topology",
                ),
            ],
            see_also: "vramstream-doctor(1), vramstream-plugin(7)",
        },
    ),
    (
        "doctor",
        Notes {
            exit_status: &[
                ("0", "Nothing stands in the way."),
                (
                    "1",
                    "Something does: the lines marked PROBLEM say what, and what to do about it.",
                ),
                ("2", "The command line is wrong."),
            ],
            environment: &[
                "PATH",
                "CRIU_LIBS_DIR",
                BUDGET_VARIABLE,
                CHECKS,
                "VRAMSTREAM_SIMULATED_GPUS",
            ],
            files: &[
                ("/usr/lib/criu/amdgpu_plugin.so", "The plugin, where CRIU looks for it."),
                ("/dev/kfd, /dev/dri/renderD*", "The devices, which must be there and open."),
                TOPOLOGY,
            ],
            examples: &[
                ("As who will run CRIU, mostly root:", "vramstream doctor"),
                (
                    "For a CRIU that is not in PATH, and for a program:",
                    "vramstream doctor --criu /opt/criu/sbin/criu --json",
                ),
            ],
            see_also: "vramstream-plan(1), vramstream-plugin(7), criu(8)",
        },
    ),
    (
        "selftest",
        Notes {
            environment: &[BUDGET_VARIABLE],
            examples: &[("With little memory:", "KFD_MAX_BUFFER_SIZE=1M vramstream selftest")],
            see_also: "vramstream-doctor(1), vramstream-bench(1)",
            ..NONE
        },
    ),
    ("bench", Notes { environment: &[BUDGET_VARIABLE], examples: BENCH, ..NONE }),
    ("bench-run", Notes { environment: &[BUDGET_VARIABLE], examples: BENCH, ..NONE }),
    ("bench-sweep", Notes { environment: &[BUDGET_VARIABLE], examples: BENCH, ..NONE }),
    (
        "commit-gate",
        Notes {
            exit_status: &[
                ("0", "The image is safe, or CRIU is at another stage: it may go on."),
                ("1", "The capture failed or died: CRIU leaves the process running."),
                ("2", "The command line is wrong."),
            ],
            environment: &["CRTOOLS_SCRIPT_ACTION", "CRTOOLS_IMAGE_DIR"],
            files: &[GATE_SOCKET],
            examples: &[(
                "CRIU runs its action script without arguments; a link of this name is one:",
                "ln -s /usr/local/bin/vramstream /usr/local/lib/vramstream-commit-gate\n\
                 criu dump --stream -D /run/dump -t PID --action-script /usr/local/lib/vramstream-commit-gate",
            )],
            see_also: "vramstream-capture(1), criu(8)",
        },
    ),
];

const BENCH: &[(Text, Text)] = &[
    ("Are the goals reached on this machine?", "vramstream bench"),
    ("One case, three times:", "vramstream bench run --gpus 8 --vram 1G --runs 3"),
    (
        "A picture of throughput over the size of the ring:",
        "vramstream bench sweep --over ring --plot rings.svg",
    ),
];

impl Notes {
    /// Of a command, by its words joined by hyphens.
    pub(super) fn of(path: &str) -> Notes {
        NOTES.iter().find(|(of, _)| *of == path).map_or(NONE, |(_, notes)| *notes)
    }

    /// All commands that have some.
    #[cfg(test)]
    pub(super) fn paths() -> impl Iterator<Item = &'static str> {
        NOTES.iter().map(|(path, _)| *path)
    }
}
