//! `vramstream-plugin(7)`.

use clap_mangen::roff::{Roff, bold, italic};

use super::{
    examples, heading,
    notes::Text,
    paragraph, term,
    variables::{self, CHECKS},
};
use vramstream::{plugin::JOIN_VARIABLE, ring::BUDGET_VARIABLE};

pub(super) const NAME: &str = "vramstream-plugin";
pub(super) const SECTION: &str = "7";

const DESCRIPTION: &[Text] = &[
    "CRIU checkpoints a process and restores it. A process that uses AMD GPUs through ROCm has state that only the \
     driver knows: queues, events, memory of the GPUs (VRAM and GTT). This plugin brings it into the checkpoint. CRIU \
     4.0 and later load it from their directory for plugins, where it is called amdgpu_plugin.so. It takes the \
     place of CRIU's own plugin of that name, reads and writes the same image files, and obeys the same variables; only \
     one of the two may be there (vramstream-doctor(1) looks).",
    "It stands for /dev/kfd and the render nodes of amdgpu, of systems with one or several GPUs of the generation \
     GFX9, also in containers that have some of the GPUs of their host. Of processes without a GPU it takes no \
     notice, and on machines without one it does nothing.",
];

const DUMPED: &[(Text, Text)] = &[
    (
        "On a dump",
        "the queues of the process are stopped, and its memory objects (BOs), queues, events and ranges of shared \
         virtual memory are asked of the driver. The contents of VRAM and GTT are copied by the SDMA engines of each \
         GPU, all GPUs at once, through a bounded ring of memory. Whatever fails, the queues run again and the process \
         goes on.",
    ),
    (
        "On a restore",
        "it is planned first which GPU here takes the place of which GPU of the checkpoint; if none can, the restore \
         fails before anything is touched and says why, GPU by GPU (vramstream-plan(1) tells the same beforehand). The \
         contents are in VRAM before the process has its devices again; its queues run when CRIU lets it go.",
    ),
];

const WAYS: &[(Text, Text)] = &[
    (
        "a directory",
        "Without --stream the contents are in files beside CRIU's own in the images directory.",
    ),
    (
        "the pipes of any image streamer",
        "With --stream and criu-image-streamer the files go through pipes, as CRIU's own do.",
    ),
    (
        "a hand-over to vramstream",
        "With --stream and vramstream-capture(1), vramstream-serve(1) or vramstream-receive(1) the plugin hands \
         descriptors of the memory to the streamer, whose own workers move the contents between VRAM and the disk or the \
         network: nothing passes through CRIU or a pipe.",
    ),
];

const FILES: &[(Text, Text)] = &[
    ("/usr/lib/criu/amdgpu_plugin.so", "The plugin. CRIU loads every file there that ends in .so."),
    (
        "amdgpu-kfd-N.img",
        "State of a process, and the GPUs that it saw. N is CRIU's number of the open file.",
    ),
    ("amdgpu-pages-N-GPU.img", "Contents of its memory on a GPU, by its id."),
    ("amdgpu-renderD-N.img", "An open render node."),
    (
        "vramstream-kfd-N.img",
        "Checksums of the state and of the contents, which other plugins ignore and this one checks.",
    ),
    ("vramstream-renderD-N.img", "Whose render node it is, where it was opened before /dev/kfd."),
    (
        "DIR/vramstream-gpu.sock",
        "In the images directory: where a vramstream takes over the contents.",
    ),
    ("/sys/class/kfd/kfd/topology", "The GPUs of this machine and how they are linked."),
];

const ERRORS: &[(Text, Text)] = &[
    (
        "Every failure is in CRIU's log",
        "with the file or device that it is about, and with what to do where there is something to do.",
    ),
    (
        "/dev/kfd: ... EACCES, EPERM",
        "CRIU lacks CAP_CHECKPOINT_RESTORE (or CAP_SYS_ADMIN) in the initial user namespace: run it as root, outside of \
         rootless containers.",
    ),
    ("the driver's interface is ..., and 1.8 or later is needed", "The kernel is too old."),
    (
        "this process cannot be restored here",
        "The GPUs differ. The message names the properties, and the variables that would allow it.",
    ),
    (
        "KFD_...=... is not understood",
        "The variable has none of the values above. Nothing was stopped.",
    ),
    (
        "the SDMA engine did not finish a copy",
        "The GPU hangs: see the kernel log. The process goes on as it was.",
    ),
];

const EXAMPLES: &[(Text, Text)] = &[
    (
        "Dump to a directory and restore from it:",
        "criu dump -D /srv/images/1 -t PID\ncriu restore -D /srv/images/1 --restore-detached",
    ),
    (
        "With 256 MiB for the contents on their way, whatever the size of VRAM:",
        "KFD_MAX_BUFFER_SIZE=256M criu dump -D /srv/images/1 -t PID",
    ),
    (
        "Onto GPUs with other firmware:",
        "KFD_FW_VER_CHECK=0 KFD_SDMA_FW_VER_CHECK=0 criu restore -D /srv/images/1 --restore-detached",
    ),
];

pub(super) fn render(source: &str, manual: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", [NAME, SECTION, "", source, manual]);
    heading(&mut page, "NAME");
    page.text([clap_mangen::roff::roman(
        "vramstream-plugin - the CRIU plugin for processes on AMD GPUs",
    )]);
    heading(&mut page, "DESCRIPTION");
    DESCRIPTION.iter().for_each(|text| paragraph(&mut page, text));
    DUMPED.iter().for_each(|(what, text)| term(&mut page, &[bold(*what)], text));
    heading(&mut page, "WHERE THE CONTENTS GO");
    WAYS.iter().for_each(|(what, text)| term(&mut page, &[bold(*what)], text));
    heading(&mut page, "ENVIRONMENT");
    paragraph(
        &mut page,
        "Of the command criu, on dump and on restore; the checks matter to restores.",
    );
    for variable in [BUDGET_VARIABLE, CHECKS, JOIN_VARIABLE, "CRIU_LIBS_DIR"]
        .into_iter()
        .flat_map(variables::find)
    {
        term(&mut page, &variable.term(), &variable.meaning());
    }
    heading(&mut page, "FILES");
    FILES.iter().for_each(|(file, text)| term(&mut page, &[italic(*file)], text));
    heading(&mut page, "ERRORS");
    ERRORS.iter().for_each(|(error, text)| term(&mut page, &[bold(*error)], text));
    heading(&mut page, "EXAMPLES");
    examples(&mut page, EXAMPLES);
    heading(&mut page, "SEE ALSO");
    paragraph(
        &mut page,
        "vramstream(1), vramstream-doctor(1), vramstream-plan(1), vramstream-capture(1), criu(8)",
    );
    page
}
