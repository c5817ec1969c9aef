// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Memory of a GPU that two processes have: the first exports it as a dma-buf and gives that to the
 * second through a socket, which imports it. Each writes a half of it, and both check all of it.
 */
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <signal.h>

#include "app.h"

#define BUFFER 0xabcd

static int to_child = -1;
static uint8_t *shared, *seen;
static uint32_t bytes;

/* Half of it: which words, and what is in them. */
static void write_half(struct gpu *gpu, uint32_t half)
{
	uint64_t *words = (uint64_t *)seen;
	uint32_t n, first = bytes / 16 * half;

	for (n = 0; n < bytes / 16; n++)
		words[n] = pattern(BUFFER, half, first + n);
	queue_copy(gpu, shared + first * 8, seen, bytes / 2);
}

uint64_t share_check(void)
{
	const uint64_t *words = (const uint64_t *)seen;
	uint32_t n;

	if (!shared)
		return 0;
	memset(seen, 0xee, bytes);
	queue_copy(&gpus[0], seen, shared, bytes);
	for (n = 0; n < bytes / 8; n++) {
		uint64_t expected = pattern(BUFFER, n >= bytes / 16, n);

		if (words[n] != expected)
			wrong("the shared buffer, byte %u: expected %#llx, found %#llx", n * 8,
			      (unsigned long long)expected, (unsigned long long)words[n]);
	}
	return bytes / 8;
}

static void send_descriptor(int socket, int fd)
{
	char byte = 0, room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof(room) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(int));
	if (sendmsg(socket, &message, 0) != 1)
		wrong("the dma-buf cannot be sent");
}

static int receive_descriptor(int socket)
{
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof(room) };
	struct cmsghdr *header;
	int fd;

	if (recvmsg(socket, &message, 0) != 1 || !(header = CMSG_FIRSTHDR(&message)))
		wrong("no dma-buf has come");
	memcpy(&fd, CMSG_DATA(header), sizeof(int));
	return fd;
}

static void __attribute__((noreturn)) second(const struct options *options, int socket)
{
	HsaGraphicsResourceInfo info;
	uint64_t generation, checks = 0;
	HSAuint64 unused;
	char byte = 0;
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	report_name(options->status, "second");
	gpus_open(options);
	seen = host_memory(bytes);
	fd = receive_descriptor(socket);
	must(hsaKmtRegisterGraphicsHandleToNodes(fd, &info, 1, &gpus[0].node));
	close(fd);
	must(hsaKmtMapMemoryToGPU(info.MemoryAddress, info.SizeInBytes, &unused));
	shared = info.MemoryAddress;
	write_half(&gpus[0], 1);
	if (write(socket, &byte, 1) != 1)
		wrong("the first process does not listen");
	close(socket);
	for (generation = 0;; generation++) {
		checks += share_check();
		report_ok(generation, checks);
		usleep(20000);
	}
}

void share_begin(const struct options *options)
{
	int ends[2];

	bytes = options->bytes;
	if (!options->share)
		return;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends))
		wrong("no sockets");
	switch (fork()) {
	case -1:
		wrong("no second process");
	case 0:
		close(ends[0]);
		second(options, ends[1]);
	default:
		close(ends[1]);
		to_child = ends[0];
	}
}

void share_give(const struct options *options)
{
	HsaMemFlags hidden = { .ui32 = { .NonPaged = 1, .NoSubstitute = 1 } };
	HSAuint64 offset;
	char byte;
	int fd;

	if (!options->share)
		return;
	seen = host_memory(bytes);
	shared = gpu_memory(gpus[0].node, bytes, hidden);
	write_half(&gpus[0], 0);
	must(hsaKmtExportDMABufHandle(shared, bytes, &fd, &offset));
	send_descriptor(to_child, fd);
	close(fd);
	if (read(to_child, &byte, 1) != 1)
		wrong("the second process has ended");
	close(to_child);
}
