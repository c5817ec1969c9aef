//! `vramstream::abi` is what the headers of this machine say.
//!
//! A C program that includes the headers prints the size of every structure, the place and the size
//! of every field, the number of every request and the value of every flag that `abi` has. Headers
//! that are older than `abi` lack some of them: a structure may end earlier if it is in [`GROWN`],
//! and what is missing is listed. But it is never much: at least so many structures and fields have
//! been compared in the end.
//!
//! Needs a C compiler and the packages `linux-libc-dev` and `libdrm-dev`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of a test, which clippy does not take for one

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    process::Command,
};

use vramstream::abi::{Plain, Request, amdgpu, drm, kfd, relay, request_size};

/// The structures that became longer over the years, which a header may have in a shorter form.
const GROWN: [&str; 5] = [
    "drm_amdgpu_gem_va",
    "drm_amdgpu_gem_op",
    "drm_amdgpu_info_device",
    "drm_amdgpu_info_hw_ip",
    "kfd_ioctl_create_queue_args",
];

/// Fields that older headers have as padding.
const NAMED_LATER: [&str; 4] = [
    "kfd_ioctl_set_memory_policy_args.misc_process_flag",
    "drm_amdgpu_info_device.pcie_gen",
    "drm_amdgpu_info_device.pcie_num_lanes",
    "drm_amdgpu_info_hw_ip.ip_discovery_version",
];

/// Fields that have another name in C. What is not here has the same name, or that with an
/// underscore before it.
const RENAMED: [(&str, &str); 4] = [
    ("kfd_ioctl_svm_attribute.kind", "type"),
    ("kfd_event_data.data", "memory_exception_data"),
    ("drm_amdgpu_info.query_type", "query_hw_ip.type"),
    ("drm_amdgpu_info.query_instance", "query_hw_ip.ip_instance"),
];

/// Fewer than this, and the headers are so old, or so different, that this test means nothing.
const FEWEST: Counts = Counts { structures: 45, fields: 240, requests: 38, values: 90 };

/// The project's own: what the kernel module of the virtual machine speaks.
const RELAY_HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vm/module/protocol.h");

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    structures: usize,
    fields: usize,
    requests: usize,
    values: usize,
}

struct Structure {
    c: &'static str,
    size: usize,
    fields: &'static [(&'static str, usize, usize)],
}

struct Number {
    c: String,
    value: u64,
}

macro_rules! structures {
    ($($c:ident $rust:path;)*) => {
        vec![$({
            use $rust as This;
            Structure { c: stringify!($c), size: size_of::<This>(), fields: This::FIELDS }
        }),*]
    };
}

fn structures() -> Vec<Structure> {
    structures! {
        kfd_ioctl_get_version_args kfd::GetVersion;
        kfd_ioctl_create_queue_args kfd::CreateQueue;
        kfd_ioctl_destroy_queue_args kfd::DestroyQueue;
        kfd_ioctl_update_queue_args kfd::UpdateQueue;
        kfd_ioctl_set_memory_policy_args kfd::SetMemoryPolicy;
        kfd_ioctl_get_clock_counters_args kfd::GetClockCounters;
        kfd_process_device_apertures kfd::DeviceApertures;
        kfd_ioctl_get_process_apertures_args kfd::GetProcessApertures;
        kfd_ioctl_get_process_apertures_new_args kfd::GetProcessAperturesNew;
        kfd_ioctl_create_event_args kfd::CreateEvent;
        kfd_ioctl_destroy_event_args kfd::DestroyEvent;
        kfd_ioctl_set_event_args kfd::SetEvent;
        kfd_ioctl_reset_event_args kfd::ResetEvent;
        kfd_event_data kfd::EventData;
        kfd_ioctl_wait_events_args kfd::WaitEvents;
        kfd_ioctl_set_trap_handler_args kfd::SetTrapHandler;
        kfd_ioctl_acquire_vm_args kfd::AcquireVm;
        kfd_ioctl_alloc_memory_of_gpu_args kfd::AllocMemoryOfGpu;
        kfd_ioctl_free_memory_of_gpu_args kfd::FreeMemoryOfGpu;
        kfd_ioctl_map_memory_to_gpu_args kfd::MapMemoryToGpu;
        kfd_ioctl_unmap_memory_from_gpu_args kfd::UnmapMemoryFromGpu;
        kfd_ioctl_get_dmabuf_info_args kfd::GetDmabufInfo;
        kfd_ioctl_import_dmabuf_args kfd::ImportDmabuf;
        kfd_ioctl_export_dmabuf_args kfd::ExportDmabuf;
        kfd_ioctl_svm_attribute kfd::SvmAttribute;
        kfd_ioctl_svm_args kfd::SvmArgs;
        kfd_ioctl_set_xnack_mode_args kfd::SetXnackMode;
        kfd_ioctl_runtime_enable_args kfd::RuntimeEnable;
        kfd_ioctl_get_available_memory_args kfd::AvailableMemory;
        kfd_ioctl_criu_args kfd::CriuArgs;
        kfd_criu_device_bucket kfd::CriuDeviceBucket;
        kfd_criu_bo_bucket kfd::CriuBoBucket;
        drm_version drm::Version;
        drm_get_cap drm::GetCap;
        drm_gem_close drm::GemClose;
        drm_prime_handle drm::PrimeHandle;
        drm_gem_change_handle drm::GemChangeHandle;
        drm_amdgpu_bo_list_entry amdgpu::BoListEntry;
        drm_amdgpu_bo_list_in amdgpu::BoListIn;
        drm_amdgpu_cs_chunk amdgpu::CsChunk;
        drm_amdgpu_cs_chunk_dep amdgpu::CsChunkDep;
        drm_amdgpu_cs_chunk_fence amdgpu::CsChunkFence;
        drm_amdgpu_cs_chunk_ib amdgpu::CsChunkIb;
        drm_amdgpu_cs_in amdgpu::CsIn;
        drm_amdgpu_ctx_in amdgpu::CtxIn;
        drm_amdgpu_fence amdgpu::Fence;
        drm_amdgpu_gem_create_in amdgpu::GemCreateIn;
        drm_amdgpu_gem_list_handles amdgpu::GemListHandles;
        drm_amdgpu_gem_list_handles_entry amdgpu::GemListHandlesEntry;
        drm_amdgpu_gem_mmap_in amdgpu::GemMmapIn;
        drm_amdgpu_gem_op amdgpu::GemOp;
        drm_amdgpu_gem_userptr amdgpu::GemUserptr;
        drm_amdgpu_gem_va amdgpu::GemVa;
        drm_amdgpu_gem_vm_entry amdgpu::GemVmEntry;
        drm_amdgpu_gem_wait_idle_in amdgpu::GemWaitIdleIn;
        drm_amdgpu_info amdgpu::Info;
        drm_amdgpu_info_device amdgpu::InfoDevice;
        drm_amdgpu_info_hw_ip amdgpu::InfoHwIp;
        drm_amdgpu_wait_cs_in amdgpu::WaitCsIn;
        drm_amdgpu_wait_fences_in amdgpu::WaitFencesIn;
        relay_request relay::RelayRequest;
        relay_answer relay::RelayAnswer;
        relay_descriptor relay::RelayDescriptor;
        relay_sysfs relay::RelaySysfs;
        relay_export relay::RelayExport;
        relay_what relay::RelayWhat;
    }
}

fn request<T: Plain>(prefix: &str, request: &Request<T>) -> Number {
    Number { c: format!("{prefix}{}", request.name()), value: request.number().into() }
}

macro_rules! requests {
    ($($prefix:literal $module:ident: $($name:ident)*;)*) => {
        vec![$($(request($prefix, &$module::$name)),*),*]
    };
}

fn requests() -> Vec<Number> {
    requests! {
        "AMDKFD_IOC_" kfd: GET_VERSION CREATE_QUEUE DESTROY_QUEUE SET_MEMORY_POLICY
            GET_CLOCK_COUNTERS GET_PROCESS_APERTURES UPDATE_QUEUE CREATE_EVENT DESTROY_EVENT
            SET_EVENT RESET_EVENT WAIT_EVENTS SET_TRAP_HANDLER GET_PROCESS_APERTURES_NEW ACQUIRE_VM
            ALLOC_MEMORY_OF_GPU FREE_MEMORY_OF_GPU MAP_MEMORY_TO_GPU UNMAP_MEMORY_FROM_GPU
            GET_DMABUF_INFO IMPORT_DMABUF SVM SET_XNACK_MODE CRIU_OP AVAILABLE_MEMORY EXPORT_DMABUF
            RUNTIME_ENABLE;
        "DRM_IOCTL_" drm: VERSION GEM_CLOSE GET_CAP PRIME_HANDLE_TO_FD PRIME_FD_TO_HANDLE
            GEM_CHANGE_HANDLE;
        "DRM_IOCTL_AMDGPU_" amdgpu: GEM_CREATE GEM_MMAP CTX BO_LIST CS INFO GEM_WAIT_IDLE GEM_VA
            WAIT_CS GEM_OP GEM_USERPTR WAIT_FENCES GEM_LIST_HANDLES;
        "RELAY_IOC_" relay: IOC_VERSION IOC_SYSFS IOC_NODE IOC_EXPORT IOC_WHAT;
    }
}

macro_rules! values {
    ($($prefix:literal $module:path: $($name:ident)*;)*) => {
        vec![$($({
            use $module as module;
            Number {
                c: format!("{}{}", $prefix, stringify!($name)),
                value: module::$name.into(),
            }
        }),*),*]
    };
}

fn values() -> Vec<Number> {
    values! {
        "KFD_IOC_ALLOC_MEM_FLAGS_" kfd::flags: VRAM GTT USERPTR DOORBELL MMIO_REMAP WRITABLE
            EXECUTABLE PUBLIC NO_SUBSTITUTE AQL_QUEUE_MEM COHERENT UNCACHED EXT_COHERENT CONTIGUOUS;
        "KFD_CRIU_OP_" kfd::criu_op: PROCESS_INFO CHECKPOINT UNPAUSE RESTORE RESUME;
        "KFD_IOC_QUEUE_TYPE_" kfd::queue_type: COMPUTE SDMA COMPUTE_AQL SDMA_XGMI SDMA_BY_ENG_ID;
        "KFD_IOC_EVENT_" kfd::event_type: SIGNAL NODECHANGE DEVICESTATECHANGE HW_EXCEPTION
            SYSTEM_EVENT DEBUG_EVENT PROFILE_EVENT QUEUE_EVENT MEMORY;
        "KFD_IOC_WAIT_RESULT_" kfd::wait_result: COMPLETE TIMEOUT FAIL;
        "KFD_" kfd: MAX_QUEUE_PERCENTAGE MAX_QUEUE_PRIORITY MIN_QUEUE_RING_SIZE SIGNAL_EVENT_LIMIT;
        "" kfd: NUM_OF_SUPPORTED_GPUS;
        "DRM_" drm: CLOEXEC RDWR;
        "AMDGPU_GEM_DOMAIN_" amdgpu::domain: CPU GTT VRAM GDS GWS OA DOORBELL;
        "AMDGPU_GEM_CREATE_" amdgpu::create: CPU_ACCESS_REQUIRED NO_CPU_ACCESS CPU_GTT_USWC
            VRAM_CLEARED VRAM_CONTIGUOUS VM_ALWAYS_VALID EXPLICIT_SYNC VRAM_WIPE_ON_RELEASE
            ENCRYPTED PREEMPTIBLE DISCARDABLE COHERENT UNCACHED EXT_COHERENT;
        "AMDGPU_GEM_USERPTR_" amdgpu::userptr: READONLY ANONONLY VALIDATE REGISTER;
        "AMDGPU_VA_OP_" amdgpu::va_op: MAP UNMAP CLEAR REPLACE;
        "AMDGPU_VM_" amdgpu::va_flag: DELAY_UPDATE MTYPE_MASK;
        "AMDGPU_VM_PAGE_" amdgpu::va_flag: READABLE WRITEABLE EXECUTABLE PRT NOALLOC;
        "AMDGPU_GEM_OP_" amdgpu::gem_op: GET_GEM_CREATE_INFO SET_PLACEMENT GET_MAPPING_INFO;
        "AMDGPU_CTX_OP_" amdgpu::ctx_op: ALLOC_CTX FREE_CTX QUERY_STATE QUERY_STATE2;
        "AMDGPU_BO_LIST_OP_" amdgpu::bo_list_op: CREATE DESTROY UPDATE;
        "AMDGPU_CHUNK_ID_" amdgpu::chunk_id: IB FENCE DEPENDENCIES SYNCOBJ_IN SYNCOBJ_OUT BO_HANDLES
            SCHEDULED_DEPENDENCIES SYNCOBJ_TIMELINE_WAIT SYNCOBJ_TIMELINE_SIGNAL CP_GFX_SHADOW;
        "AMDGPU_HW_IP_" amdgpu::hw_ip: GFX COMPUTE DMA;
        "AMDGPU_INFO_" amdgpu::info: ACCEL_WORKING HW_IP_INFO HW_IP_COUNT VRAM_GTT DEV_INFO MEMORY;
        "AMDGPU_" amdgpu: FAMILY_AI;
        "RELAY_" relay: VERSION FIRST_MINOR MINORS;
        "RELAY_" relay::kind: OPEN IOCTL MMAP CLOSE UNMAP INTERRUPT;
    }
}

/// The questions to the compiler: what is printed for each, by its key.
fn questions() -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    for Structure { c, fields, .. } in structures() {
        lines.insert(c.to_owned(), format!("sizeof(struct {c}), 0ull"));
        for (field, ..) in fields {
            let key = format!("{c}.{field}");
            let renamed = RENAMED.iter().find(|(ours, _)| *ours == key).map(|(_, theirs)| *theirs);
            let names = match renamed {
                Some(name) => vec![name.to_owned()],
                None => [field.to_string(), format!("_{field}"), format!("{field}ding")].into(),
            };
            for name in names {
                let print = format!(
                    "offsetof(struct {c}, {name}), (unsigned long long)sizeof(((struct {c} *)0)->{name})"
                );
                lines.insert(format!("{key}/{name}"), print);
            }
        }
    }
    for Number { c, .. } in requests().into_iter().chain(values()) {
        lines.insert(c.clone(), format!("({c}), 0ull"));
    }
    lines
}

/// What the headers answer: two numbers for each question that they understand.
fn answers(mut questions: BTreeMap<String, String>) -> BTreeMap<String, (u64, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("headers.c"), dir.path().join("headers"));
    // Where Debian has what the kernel has as <drm/...>.
    std::os::unix::fs::symlink("/usr/include/libdrm", dir.path().join("drm")).unwrap();
    // The first time some do not compile, because the headers do not have them.
    for _ in 0..2 {
        let mut text = String::from(
            "#include <stddef.h>\n#include <stdio.h>\n#include <fcntl.h>\n#include <linux/kfd_ioctl.h>\n\
             #include <drm/amdgpu_drm.h>\n",
        );
        writeln!(text, "#include \"{RELAY_HEADER}\"\nint main(void) {{").unwrap();
        let first = text.lines().count() + 1;
        for (key, print) in &questions {
            writeln!(text, "printf(\"%s %llu %llu\\n\", \"{key}\", (unsigned long long){print});")
                .unwrap();
        }
        text.push_str("return 0; }\n");
        fs::write(&source, text).unwrap();
        let compiler = Command::new("cc")
            .args(["-w", "-fmax-errors=0", "-o"])
            .args([&program, &source])
            .arg("-idirafter")
            .arg(dir.path())
            .env("LC_ALL", "C")
            .output()
            .expect("no C compiler: install the package gcc");
        let messages = String::from_utf8(compiler.stderr).unwrap();
        if compiler.status.success() {
            let output = Command::new(&program).output().unwrap();
            let parse = |line: &str| {
                let words: Vec<_> = line.split(' ').collect();
                (words[0].to_owned(), (words[1].parse().unwrap(), words[2].parse().unwrap()))
            };
            return String::from_utf8(output.stdout).unwrap().lines().map(parse).collect();
        }
        let wrong = wrong_lines(&messages);
        assert!(
            !wrong.is_empty() && wrong.iter().all(|&line| line >= first),
            "the headers do not compile: install the packages linux-libc-dev and libdrm-dev\n{messages}"
        );
        let mut line = first - 1;
        questions.retain(|_, _| {
            line += 1;
            !wrong.contains(&line)
        });
    }
    panic!("it still does not compile");
}

/// The lines of the source in which the compiler finds an error.
fn wrong_lines(messages: &str) -> BTreeSet<usize> {
    let error = |line: &str| {
        let (place, _) =
            line.split_once(" error: ").or_else(|| line.split_once(" fatal error: "))?;
        place.split_once("headers.c:")?.1.split(':').next()?.parse().ok()
    };
    messages.lines().filter_map(error).collect()
}

#[test]
fn every_structure_and_number_is_that_of_the_headers() {
    let answers = answers(questions());
    let mut counts = Counts::default();
    let (mut missing, mut wrong) = (Vec::new(), Vec::new());
    let mut grown = BTreeSet::new();

    for Structure { c, size, fields } in structures() {
        let Some(&(theirs, _)) = answers.get(c) else {
            missing.push(format!("struct {c}"));
            continue;
        };
        counts.structures += 1;
        if theirs != size as u64 && !(theirs < size as u64 && GROWN.contains(&c)) {
            wrong.push(format!("struct {c} has {theirs} bytes, not {size}"));
        }
        grown.insert((size as u64, theirs));
        for &(field, offset, size) in fields {
            let name = format!("{c}.{field}");
            let answer = answers.range(format!("{name}/")..).next();
            let answer = answer.filter(|(key, _)| key.starts_with(&format!("{name}/")));
            let ours = (offset as u64, size as u64);
            match answer {
                Some((_, theirs)) if *theirs == ours => counts.fields += 1,
                // C has names for some padding, not always those that are here.
                _ if field.starts_with("pad") => missing.push(format!("{name} (padding)")),
                Some((_, (at, len))) => {
                    wrong.push(format!("{name} is {len} bytes at {at}, not {size} at {offset}"));
                }
                None if ours.0 + ours.1 > theirs || NAMED_LATER.contains(&&*name) => {
                    missing.push(name);
                }
                None => wrong.push(format!("there is no {name}")),
            }
        }
    }
    for Number { c, value } in requests() {
        let Some(&(theirs, _)) = answers.get(&c) else {
            missing.push(c);
            continue;
        };
        counts.requests += 1;
        // A structure that was shorter is another number, and nothing else of it differs.
        let theirs = u32::try_from(theirs & 0xffff_ffff).unwrap();
        let ours = u32::try_from(value).unwrap();
        let sizes = (request_size(ours) as u64, request_size(theirs) as u64);
        let rest = |number| number & !(0x3fff << 16);
        if ours != theirs && !(rest(ours) == rest(theirs) && grown.contains(&sizes)) {
            wrong.push(format!("{c} is {theirs:#x}, not {ours:#x}"));
        }
    }
    for Number { c, value } in values() {
        let Some(&(theirs, _)) = answers.get(&c) else {
            missing.push(c);
            continue;
        };
        counts.values += 1;
        // Some are ints in C, and the last bit of an int is its sign.
        if theirs != value && theirs & 0xffff_ffff != value {
            wrong.push(format!("{c} is {theirs:#x}, not {value:#x}"));
        }
    }

    println!("compared: {counts:?}");
    println!("not in the headers of this machine: {missing:#?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    let enough = counts.structures >= FEWEST.structures
        && counts.fields >= FEWEST.fields
        && counts.requests >= FEWEST.requests
        && counts.values >= FEWEST.values;
    assert!(enough, "compared only {counts:?}, not in the headers: {missing:#?}");
}
