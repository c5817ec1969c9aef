//! A file is closed: what is left in it goes, and is named.

use std::{collections::BTreeSet, fmt::Display};

use super::RenderFile;
use crate::device::sim::host::{FileId, SimHost};

/// Ends all that is left in a file. A process that is to be careful leaves nothing: what is left
/// becomes a complaint, unless the process was abandoned or the file is the application's own.
pub(in crate::device::sim) fn released(host: &SimHost, id: FileId, file: RenderFile) {
    let shared = &host.shared;
    let unfinished = shared.in_flight.of_file(id);
    shared.engines[file.gpu].cancel(id);
    if file.is_applications || shared.log.is_abandoned(file.pid) {
        return;
    }
    let minor = host.machine().gpus[file.gpu].render_minor;
    let complain = |kind: &str, count: usize, names: &dyn Display| {
        if count > 0 {
            let what = format!("renderD{minor} was closed with {count} {kind} left: {names}");
            shared.log.complain(file.pid, what);
        }
    };
    let handles: Vec<u32> = file.handles.iter().map(|(number, _)| number).collect();
    complain("handles", handles.len(), &Few(&handles));
    let vm = file.vm();
    let mapped: Vec<String> = vm.iter().map(|(va, _)| format!("{va:#x}")).collect();
    complain("mappings", mapped.len(), &Few(&mapped));
    drop(vm);
    let contexts: Vec<&u32> = file.contexts.keys().collect();
    complain("contexts", contexts.len(), &Few(&contexts));
    let lists: Vec<&u32> = file.lists.keys().collect();
    complain("lists of objects", lists.len(), &Few(&lists));
    if !shared.faults.may_hang(file.gpu) {
        let jobs: BTreeSet<String> = unfinished.iter().map(ToString::to_string).collect();
        let jobs: Vec<String> = jobs.into_iter().collect();
        complain("submissions", jobs.len(), &Few(&jobs));
    }
}

/// The first few of many.
struct Few<'a, T>(&'a [T]);

impl<T: Display> Display for Few<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, name) in self.0.iter().enumerate().take(8) {
            if index > 0 {
                f.write_str(", ")?;
            }
            name.fmt(f)?;
        }
        if self.0.len() > 8 { f.write_str(", …") } else { Ok(()) }
    }
}
