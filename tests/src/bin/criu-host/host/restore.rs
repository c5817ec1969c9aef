//! `criu restore`: the master, which forks the tasks.

use std::{
    io::Read as _,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::ExitCode,
};

use clap::Args;
use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};

use super::{
    Common, Flavour, Result, Stage, complain, host, locked,
    plugin::{ENOTSUP, Plugins, hook},
    record::Record,
    say, service, task,
};

#[derive(Args, Debug)]
pub(super) struct Restore {
    #[command(flatten)]
    common: Common,
    /// Something else fails after the tasks are there
    #[arg(long)]
    fail: bool,
}

/// A task that was forked.
struct Forked {
    virtual_pid: i32,
    pid: Pid,
    transport: OwnedFd,
}

impl Restore {
    pub(super) fn run(&self, flavour: &'static Flavour) -> Result<ExitCode> {
        self.common.begin(flavour, Stage::Restore)?;
        let record = Record::read(&self.common.record)?;
        self.read_inventory()?;
        locked(&host().inventory).clone_from(&record.inventory);
        if flavour.fdstore_before_init {
            service::make_store()?;
        }
        let plugins = match Plugins::load(&self.common.plugin, Stage::Restore) {
            Ok(plugins) => plugins,
            Err(error) => {
                eprintln!("criu-host: {error}");
                return Ok(ExitCode::FAILURE);
            }
        };
        let mut tasks = Vec::new();
        let done = self.restore(flavour, &plugins, &record, &mut tasks);
        if let Err(error) = &done {
            complain(&format!("Restoring failed: {error}"));
            for task in &tasks {
                let _ = kill(task.pid, Signal::SIGKILL);
                let _ = waitpid(task.pid, None);
            }
        } else {
            for task in &tasks {
                let _ = send(task.transport.as_raw_fd(), b"run", MsgFlags::empty());
            }
            for task in &tasks {
                // It has looked at its mappings.
                let _ = answer(task);
                say(&format!("task {} {}", task.virtual_pid, task.pid));
            }
        }
        service::uninstall(service::IMG_STREAMER);
        plugins.exit(Stage::Restore, if done.is_ok() { 0 } else { -1 });
        Ok(if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn restore(
        &self,
        flavour: &Flavour,
        plugins: &Plugins,
        record: &Record,
        tasks: &mut Vec<Forked>,
    ) -> Result<()> {
        if flavour.hooks > hook::RESTORE_INIT {
            let ret = plugins.run_plain(hook::RESTORE_INIT);
            say(&format!("RESTORE_INIT = {ret}"));
            if ret < 0 && ret != ENOTSUP {
                return Err("RESTORE_INIT".into());
            }
        }
        if flavour.inventory
            && let Some(name) = locked(&host().inventory).iter().flatten().next()
        {
            return Err(format!("Missing required plugin: {name}").into());
        }
        if !flavour.fdstore_before_init {
            service::make_store()?;
        }
        for task in &record.tasks {
            let flags = SockFlag::SOCK_CLOEXEC;
            let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
            // SAFETY: this process has one thread, as CRIU has; if a plugin has started others
            // that is what a test is to find.
            match unsafe { fork() }? {
                ForkResult::Parent { child } => {
                    tasks.push(Forked { virtual_pid: task.pid, pid: child, transport: ours });
                }
                ForkResult::Child => task::run(plugins, task, theirs),
            }
        }
        if flavour.hooks > hook::POST_FORKING {
            let ret = plugins.run_plain(hook::POST_FORKING);
            say(&format!("POST_FORKING = {ret}"));
            if ret < 0 && ret != ENOTSUP {
                return Err("POST_FORKING".into());
            }
        }
        // (All are waited for, so that what they say is whole.)
        let answers: Vec<_> = tasks.iter().map(answer).collect();
        for (task, answer) in tasks.iter().zip(answers) {
            if answer != "restored" {
                let how = waitpid(task.pid, Some(WaitPidFlag::WNOHANG));
                return Err(format!("task {} {answer} {how:?}", task.virtual_pid).into());
            }
        }
        if self.fail {
            return Err("something else failed".into());
        }
        for task in tasks.iter() {
            let ret = plugins.run_with(hook::RESUME_DEVICES_LATE, task.pid.as_raw());
            // CRIU goes on whatever it is.
            say(&format!("RESUME_DEVICES_LATE {} = {ret}", task.virtual_pid));
        }
        Ok(())
    }

    /// CRIU reads it first.
    fn read_inventory(&self) -> Result<()> {
        if self.common.stream {
            let fd = service::streamer_open("inventory.img");
            if fd < 0 {
                return Err("no inventory.img".into());
            }
            // SAFETY: opened by this program just now, and given to nobody else.
            let mut image = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
            image.read_to_end(&mut Vec::new())?;
        }
        Ok(())
    }
}

/// What a task says; nothing if it has ended.
fn answer(task: &Forked) -> String {
    let mut buffer = [0; 256];
    let len = recv(task.transport.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap_or(0);
    if len == 0 {
        return "ended".into();
    }
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}
