// SPDX-License-Identifier: MIT OR GPL-2.0
/* Children. They are made before the parent uses a GPU: KFD is not for who has forked. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app.h"

static int to_child = -1;

static void count_in(const char *status, const char *suffix, unsigned long count)
{
	char name[4096], new[4104];
	FILE *file;

	snprintf(name, sizeof(name), "%s.%s", status, suffix);
	snprintf(new, sizeof(new), "%s.new", name);
	file = fopen(new, "w");
	if (!file || fprintf(file, "ok %lu\n", count) < 0 || fclose(file) || rename(new, name))
		_exit(2);
}

void tree_count(unsigned int children, const char *status)
{
	unsigned int n;

	for (n = 0; n < children; n++) {
		char suffix[16];
		unsigned long count;
		pid_t child = fork();

		if (child < 0)
			wrong("fork: %s", strerror(errno));
		if (child)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		snprintf(suffix, sizeof(suffix), "%u", n);
		for (count = 1;; count++) {
			count_in(status, suffix, count);
			usleep(50 * 1000);
		}
	}
}

/* What the parent sends: a dma-buf, and how large it is. */
struct offer {
	size_t bytes;
	uint64_t seed;
	char status[1024];
};

static int receive(int socket, struct offer *offer)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec data = { offer, sizeof(*offer) };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	int fd = -1;

	if (recvmsg(socket, &message, MSG_WAITALL) != sizeof(*offer) || !CMSG_FIRSTHDR(&message))
		exit(0);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

_Noreturn static void share_child(int socket)
{
	struct gpu gpu = { 0 };
	struct offer offer;
	HsaSystemProperties system;
	HsaGraphicsResourceInfo info;
	HSAuint64 address = 0;
	unsigned long count;
	uint64_t *window;
	int fd = receive(socket, &offer);
	size_t i;

	must(hsaKmtOpenKFD(), "hsaKmtOpenKFD in the child");
	must(hsaKmtAcquireSystemProperties(&system), "hsaKmtAcquireSystemProperties in the child");
	for (gpu.node = 0;; gpu.node++) {
		HsaNodeProperties properties;

		must(hsaKmtGetNodeProperties(gpu.node, &properties), "hsaKmtGetNodeProperties");
		if (properties.NumFComputeCores)
			break;
	}
	queue_init(&gpu);
	window = allocate(gpu.node, offer.bytes, GTT, false);
	must(hsaKmtRegisterGraphicsHandleToNodes(fd, &info, 1, &gpu.node), "hsaKmtRegisterGraphicsHandleToNodes");
	must(hsaKmtMapMemoryToGPUNodes(info.MemoryAddress, info.SizeInBytes, &address,
				       (HsaMemMapFlags){ .Value = 0 }, 1, &gpu.node),
	     "hsaKmtMapMemoryToGPUNodes of what is shared");
	close(fd);
	close(socket);
	for (count = 1;; count++) {
		memset(window, 0, offer.bytes);
		queue_copy(&gpu, info.MemoryAddress, window, offer.bytes);
		queue_finish(&gpu);
		for (i = 0; i < offer.bytes / sizeof(*window); i++)
			if (window[i] != pattern(offer.seed, 0, i))
				wrong("the shared BO: word %zu is %#lx", i, window[i]);
		count_in(offer.status, "shared", count);
		usleep(20 * 1000);
	}
}

void tree_prepare_sharing(void)
{
	int ends[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		wrong("socketpair: %s", strerror(errno));
	child = fork();
	if (child < 0)
		wrong("fork: %s", strerror(errno));
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		share_child(ends[1]);
	}
	close(ends[1]);
	to_child = ends[0];
}

void tree_share(struct gpu *gpu, size_t bytes, const char *status)
{
	struct offer offer = { .bytes = bytes, .seed = 0x5a };
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { &offer, sizeof(offer) };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	uint64_t *shared = allocate(gpu->node, bytes, VISIBLE, false);
	HSAuint64 offset;
	int fd = -1;
	size_t i;

	for (i = 0; i < bytes / sizeof(*shared); i++)
		shared[i] = pattern(offer.seed, 0, i);
	must(hsaKmtExportDMABufHandle(shared, bytes, &fd, &offset), "hsaKmtExportDMABufHandle");
	snprintf(offer.status, sizeof(offer.status), "%s", status);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
	if (sendmsg(to_child, &message, 0) != sizeof(offer))
		wrong("sendmsg: %s", strerror(errno));
	close(fd);
	close(to_child);
}
