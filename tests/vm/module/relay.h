/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A stand-in for amdgpu that knows nothing of GPUs: it makes the device nodes and the sysfs files that
 * a daemon asks for, and relays to it what processes do with them.
 *
 *   relay.c    /dev/gpu-relay: requests out, answers in
 *   nodes.c    /dev/kfd and /dev/dri/renderD*: open, ioctl, mmap, close
 *   sysfs.c    the files below /sys/class/kfd/kfd
 *   dmabuf.c   dma-bufs, which have no memory of their own
 */
#ifndef RELAY_H
#define RELAY_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "protocol.h"

struct file;
struct device;

/* One daemon, from its open of /dev/gpu-relay to its end, and to the last file that it had opened. */
struct relay {
	struct kref references;
	struct mutex setup;
	spinlock_t lock;
	bool dead;
	u64 next;
	pid_t daemon;
	struct list_head unread;
	struct list_head unanswered;
	wait_queue_head_t readers;
	struct device *kfd;
	struct device *render[RELAY_MINORS];
	struct device *card[RELAY_MINORS];
	struct device *parent[RELAY_MINORS];
	struct list_head files;
	struct list_head directories;
};

/* A request, or a notice, on its way to the daemon and back. */
struct request {
	struct kref references;
	struct list_head list;
	wait_queue_head_t answered;
	bool done;
	struct relay_request head;
	struct relay_answer answer;
	/* As much as head.argument_len, the daemon's to change. */
	void *argument;
	/* Of the answer: files that the caller gets, or the memory of a mapping. */
	struct relay_descriptor *descriptors;
	struct file **given;
	struct file *memory;
};

/* relay.c */
struct relay *relay_get(void);
void relay_put(struct relay *relay);
u64 relay_cookie(struct relay *relay);
struct request *request_new(u32 kind, u64 file, size_t argument_len);
void request_put(struct request *request);
/* Sends a request and waits; the daemon's errno, negative, or -ENODEV without a daemon. */
int relay_ask(struct relay *relay, struct request *request);
/* Sends something that gets no answer, and takes it over. */
void relay_tell(struct relay *relay, struct request *notice);

/* nodes.c */
int nodes_init(void);
void nodes_exit(void);
int node_add(struct relay *relay, u32 minor);
void nodes_remove(struct relay *relay);
u64 node_cookie(struct file *file);

/* sysfs.c */
int sysfs_add(struct relay *relay, const struct relay_sysfs __user *from);
void sysfs_remove(struct relay *relay);

/* dmabuf.c */
int dmabuf_export(struct relay_export *args);

#endif
