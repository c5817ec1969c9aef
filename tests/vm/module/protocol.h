/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the module and the daemon behind it say to each other, through /dev/gpu-relay.
 *
 * read(2) yields one request, write(2) takes one answer. A request is a struct relay_request and the
 * ioctl's argument; an answer is a struct relay_answer, the argument as it is to be copied back, and
 * a struct relay_descriptor for each descriptor that the caller is to get. Requests with id 0 are
 * notices and get no answer. ioctl(2) does the rest: below.
 *
 * The daemon's end of this is src/device/sim/relay/wire.rs.
 */
#ifndef RELAY_PROTOCOL_H
#define RELAY_PROTOCOL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define RELAY_VERSION 1

/* The first render minor, and how many there can be. */
#define RELAY_FIRST_MINOR 128
#define RELAY_MINORS 128

enum relay_kind {
	/* A node is being opened: device, flags; the file has this cookie from now on. */
	RELAY_OPEN = 1,
	/* An ioctl: number, argument. */
	RELAY_IOCTL = 2,
	/* A mapping: offset, len. The caller's mmap lock is held: do not touch its memory. */
	RELAY_MMAP = 3,
	/* The last descriptor of a file was closed. */
	RELAY_CLOSE = 4,
	/* Notice: the last page of a mapping (file is its cookie) was unmapped. */
	RELAY_UNMAP = 5,
	/* Notice: the caller of request (file is its id) has a signal to see to, or was killed. */
	RELAY_INTERRUPT = 6,
};

struct relay_request {
	__u64 id;
	__u64 file;
	__u32 kind;
	/* The caller's thread group, in the initial pid namespace. */
	__u32 process;
	/* A render minor, or 0: /dev/kfd. */
	__u32 device;
	__u32 number;
	__u64 offset;
	__u64 len;
	/* Bit n: the caller's device cgroup lets it read and write render minor 128 + n. */
	__u64 allowed[RELAY_MINORS / 64];
	__u32 argument_len;
	__u32 reserved;
};

struct relay_answer {
	__u64 id;
	/* 0, or an errno. */
	__u32 error;
	__u32 argument_len;
	__u32 descriptors;
	/* MMAP: the daemon's descriptor of the memory file, where in it, and the mapping's cookie. */
	__s32 memory;
	__u64 memory_offset;
	__u64 mapping;
};

struct relay_descriptor {
	/* The daemon's; the caller gets one of the same file. */
	__s32 fd;
	/* O_CLOEXEC or 0. */
	__u32 flags;
	/* Where its number goes: a byte of the argument, or an address of the caller. */
	__u64 place;
	__u32 in_memory;
	__u32 reserved;
};

/* The most descriptors in one answer. */
#define RELAY_MOST_DESCRIPTORS 65536

/* A file below /sys/class/kfd/kfd. guard: a render minor that the reader must be allowed to use, or 0. */
struct relay_sysfs {
	__u64 path;
	__u64 data;
	__u32 path_len;
	__u32 data_len;
	__u32 guard;
	__u32 reserved;
};

struct relay_export {
	__u64 size;
	/* O_RDWR or O_RDONLY. */
	__u32 flags;
	/* Out: a descriptor of a new dma-buf. */
	__s32 fd;
};

struct relay_what {
	__s32 fd;
	__u32 reserved;
	/* Out: the cookie of the open file of ours that it is of, or 0. */
	__u64 file;
};

#define RELAY_IOC_VERSION _IOR('v', 0, __u32)
#define RELAY_IOC_SYSFS _IOW('v', 1, struct relay_sysfs)
/* A render node by its minor; 0: /dev/kfd, which comes first. */
#define RELAY_IOC_NODE _IOW('v', 2, __u32)
#define RELAY_IOC_EXPORT _IOWR('v', 3, struct relay_export)
#define RELAY_IOC_WHAT _IOWR('v', 4, struct relay_what)

#endif
