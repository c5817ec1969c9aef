//! Image files as CRIU writes them: enough of them for a streamer to tell them apart.
//!
//! An image is two magic numbers, then records: a length and a protobuf message. The messages
//! here have the fields that matter to a streamer, under CRIU's field numbers.

use prost::Message;

/// At the head of every image but the inventory.
pub const COMMON_MAGIC: u32 = 0x5456_4319;
/// The first four bytes of `inventory.img`, the last image of a dump, which alone has no other
/// magic number in front.
pub const INVENTORY_MAGIC: u32 = 0x5831_3116;
/// The next four of `files.img`.
pub const FILES_MAGIC: u32 = 0x5630_3138;
/// The next four of `pagemap-*.img`.
pub const PAGEMAP_MAGIC: u32 = 0x5608_4025;

/// `TCP_LISTEN`.
pub const LISTEN: u32 = 10;
/// `TCP_ESTABLISHED`.
pub const ESTABLISHED: u32 = 1;
/// `AF_INET` and `AF_INET6`.
pub const FAMILIES: [u32; 2] = [2, 10];

/// An image of these records, each already a message.
pub fn image(magic: u32, records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = match magic {
        INVENTORY_MAGIC => Vec::new(),
        _ => COMMON_MAGIC.to_le_bytes().to_vec(),
    };
    bytes.extend(magic.to_le_bytes());
    for record in records {
        bytes.extend((record.len() as u64).to_le_bytes().iter().take(4));
        bytes.extend(record);
    }
    bytes
}

/// A small `inventory.img`.
pub fn inventory() -> Vec<u8> {
    let entry = Inventory {
        img_version: 2,
        fdinfo_per_id: Some(true),
        ns_per_id: Some(true),
        root_cg_set: Some(1),
        network_lock_method: Some(2),
    };
    image(INVENTORY_MAGIC, &[entry.encode_to_vec()])
}

/// CRIU's `inventory_entry`, in part.
#[derive(Clone, Copy, PartialEq, Message)]
struct Inventory {
    #[prost(uint32, required, tag = "1")]
    img_version: u32,
    #[prost(bool, optional, tag = "2")]
    fdinfo_per_id: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    ns_per_id: Option<bool>,
    #[prost(uint32, optional, tag = "5")]
    root_cg_set: Option<u32>,
    #[prost(uint32, optional, tag = "11")]
    network_lock_method: Option<u32>,
}

/// CRIU's `file_entry`, in part.
#[derive(Clone, PartialEq, Message)]
pub struct FileEntry {
    /// What kind of file: 4 is a network socket, 6 an epoll.
    #[prost(uint32, required, tag = "1")]
    pub kind: u32,
    /// Its number in the dump.
    #[prost(uint32, required, tag = "2")]
    pub id: u32,
    /// If it is a network socket.
    #[prost(message, optional, tag = "4")]
    pub inet: Option<InetSocket>,
    /// If it is an epoll.
    #[prost(message, optional, tag = "9")]
    pub epoll: Option<Epoll>,
}

/// CRIU's `inet_sk_entry`.
#[derive(Clone, PartialEq, Message)]
pub struct InetSocket {
    /// Number of the file.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Inode of the socket.
    #[prost(uint32, required, tag = "2")]
    pub ino: u32,
    /// One of [`FAMILIES`].
    #[prost(uint32, required, tag = "3")]
    pub family: u32,
    /// `SOCK_STREAM` is 1.
    #[prost(uint32, required, tag = "4")]
    pub kind: u32,
    /// `IPPROTO_TCP` is 6.
    #[prost(uint32, required, tag = "5")]
    pub proto: u32,
    /// [`LISTEN`] or another.
    #[prost(uint32, required, tag = "6")]
    pub state: u32,
    /// The port it is bound to.
    #[prost(uint32, required, tag = "7")]
    pub src_port: u32,
    /// The port it is connected to.
    #[prost(uint32, required, tag = "8")]
    pub dst_port: u32,
    /// Flags of the descriptor.
    #[prost(uint32, required, tag = "9")]
    pub flags: u32,
    /// Of `listen`.
    #[prost(uint32, required, tag = "10")]
    pub backlog: u32,
    /// The address it is bound to, as words.
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub src_addr: Vec<u32>,
    /// The address it is connected to.
    #[prost(uint32, repeated, packed = "false", tag = "12")]
    pub dst_addr: Vec<u32>,
    /// Who gets its signals.
    #[prost(message, required, tag = "13")]
    pub fown: Fown,
    /// Socket options.
    #[prost(message, required, tag = "14")]
    pub opts: SocketOptions,
    /// Not for v4 as well.
    #[prost(bool, optional, tag = "15")]
    pub v6only: Option<bool>,
}

/// CRIU's `fown_entry`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Fown {
    /// User.
    #[prost(uint32, required, tag = "1")]
    pub uid: u32,
    /// Effective user.
    #[prost(uint32, required, tag = "2")]
    pub euid: u32,
    /// Signal.
    #[prost(uint32, required, tag = "3")]
    pub signum: u32,
    /// Kind of `pid`.
    #[prost(uint32, required, tag = "4")]
    pub pid_type: u32,
    /// Process.
    #[prost(uint32, required, tag = "5")]
    pub pid: u32,
}

/// CRIU's `sk_opts_entry`, in part.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SocketOptions {
    /// Size of the send buffer.
    #[prost(uint32, required, tag = "1")]
    pub sndbuf: u32,
    /// Size of the receive buffer.
    #[prost(uint32, required, tag = "2")]
    pub rcvbuf: u32,
    /// Seconds.
    #[prost(uint64, required, tag = "3")]
    pub snd_sec: u64,
    /// Microseconds.
    #[prost(uint64, required, tag = "4")]
    pub snd_usec: u64,
    /// Seconds.
    #[prost(uint64, required, tag = "5")]
    pub rcv_sec: u64,
    /// Microseconds.
    #[prost(uint64, required, tag = "6")]
    pub rcv_usec: u64,
    /// `SO_REUSEPORT`.
    #[prost(bool, optional, tag = "17")]
    pub reuseport: Option<bool>,
}

/// CRIU's `eventpoll_file_entry`.
#[derive(Clone, PartialEq, Message)]
pub struct Epoll {
    /// Number of the file.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Flags of the descriptor.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "3")]
    pub fown: Fown,
    /// What it watches.
    #[prost(message, repeated, tag = "4")]
    pub watched: Vec<Watched>,
}

/// CRIU's `eventpoll_tfd_entry`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Watched {
    /// Number of the epoll.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// The descriptor.
    #[prost(uint32, required, tag = "2")]
    pub tfd: u32,
    /// Which events.
    #[prost(uint32, required, tag = "3")]
    pub events: u32,
    /// What the program wants with them.
    #[prost(uint64, required, tag = "4")]
    pub data: u64,
}

/// A TCP socket as a record of `files.img`; `family` is one of [`FAMILIES`].
pub fn tcp_socket(id: u32, family: u32, state: u32, port: u32) -> FileEntry {
    let listens = state == LISTEN;
    let inet = InetSocket {
        id,
        ino: 70_000 + id,
        family,
        kind: 1,
        proto: 6,
        state,
        src_port: port,
        dst_port: if listens { 0 } else { 41_234 },
        flags: 0x2,
        backlog: if listens { 128 } else { 0 },
        src_addr: vec![0; if family == FAMILIES[0] { 1 } else { 4 }],
        dst_addr: vec![0; if family == FAMILIES[0] { 1 } else { 4 }],
        fown: Fown::default(),
        opts: SocketOptions { sndbuf: 16_384, rcvbuf: 131_072, ..SocketOptions::default() },
        v6only: (family == FAMILIES[1]).then_some(true),
    };
    FileEntry { kind: 4, id, inet: Some(inet), epoll: None }
}

/// An epoll that watches so many descriptors, as a record of `files.img`.
pub fn epoll(id: u32, watched: u32) -> FileEntry {
    let watch = |tfd| Watched { id, tfd, events: 0x2019, data: 0x7fff_0000_0000 + u64::from(tfd) };
    let watched = (0..watched).map(watch).collect();
    let epoll = Epoll { id, flags: 0x2, fown: Fown::default(), watched };
    FileEntry { kind: 6, id, inet: None, epoll: Some(epoll) }
}

/// Bytes that no codec shrinks and that differ between seeds: a plain xorshift generator.
pub fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
