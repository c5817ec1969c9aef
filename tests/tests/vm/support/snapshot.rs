//! The files of a process as they were when it was dumped.
//!
//! A process that goes on after its dump goes on changing its files, and a restore needs them as they
//! were: who keeps such a dump keeps a snapshot of the file system with it. CRIU's action script makes one
//! while the process stands still.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use vramstream_tests::real::process::run;

use super::{Case, Result, criu::Options};

/// Of a folder.
#[derive(Debug)]
pub(crate) struct Snapshot {
    folder: PathBuf,
    copy: PathBuf,
    script: PathBuf,
}

impl Snapshot {
    /// To be made by a dump with [`options`](Self::options).
    pub(crate) fn of(case: &Case, folder: &Path) -> Result<Self> {
        let dir = case.dir("snapshot")?;
        let (copy, script) = (dir.join("copy"), dir.join("script"));
        let (from, to) = (folder.display(), copy.display());
        let text = format!(
            "#!/bin/sh\ntest \"$CRTOOLS_SCRIPT_ACTION\" != post-dump || cp -a {from} {to}\n"
        );
        fs::write(&script, text)?;
        fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        Ok(Self { folder: folder.to_owned(), copy, script })
    }

    /// The same, and the snapshot is made.
    pub(crate) fn options(&self, options: &Options) -> Options {
        options.clone().with(&["--action-script", &self.script.display().to_string()])
    }

    /// Brings the files back. Nobody may use them now.
    pub(crate) fn bring_back(&self) -> Result<()> {
        fs::remove_dir_all(&self.folder)?;
        run(Command::new("cp").arg("-a").args([&self.copy, &self.folder])).map(drop)
    }
}
