// SPDX-License-Identifier: MIT OR GPL-2.0
/* /dev/gpu-relay: the daemon reads requests from it and writes answers to it. */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "relay.h"

/* The daemon of now; there is one at most. */
static DEFINE_MUTEX(current_lock);
static struct relay *current_relay;

/* How long a close waits for a daemon that does not answer. */
#define CLOSE_PATIENCE (10 * HZ)

static void relay_free(struct kref *references)
{
	kfree(container_of(references, struct relay, references));
	module_put(THIS_MODULE);
}

struct relay *relay_get(void)
{
	struct relay *relay;

	mutex_lock(&current_lock);
	relay = current_relay;
	if (relay)
		kref_get(&relay->references);
	mutex_unlock(&current_lock);
	return relay;
}

void relay_put(struct relay *relay)
{
	kref_put(&relay->references, relay_free);
}

u64 relay_cookie(struct relay *relay)
{
	u64 cookie;

	spin_lock(&relay->lock);
	cookie = ++relay->next;
	spin_unlock(&relay->lock);
	return cookie;
}

static void drop_files(struct request *request)
{
	u32 i;

	for (i = 0; request->given && i < request->answer.descriptors; i++)
		if (request->given[i])
			fput(request->given[i]);
	kvfree(request->given);
	kvfree(request->descriptors);
	request->given = NULL;
	request->descriptors = NULL;
	if (request->memory)
		fput(request->memory);
	request->memory = NULL;
}

static void request_free(struct kref *references)
{
	struct request *request = container_of(references, struct request, references);

	drop_files(request);
	kvfree(request->argument);
	kfree(request);
}

struct request *request_new(u32 kind, u64 file, size_t argument_len)
{
	struct request *request = kzalloc(sizeof(*request), GFP_KERNEL);

	if (!request)
		return NULL;
	if (argument_len) {
		request->argument = kvzalloc(argument_len, GFP_KERNEL);
		if (!request->argument) {
			kfree(request);
			return NULL;
		}
	}
	kref_init(&request->references);
	INIT_LIST_HEAD(&request->list);
	init_waitqueue_head(&request->answered);
	request->head.kind = kind;
	request->head.file = file;
	request->head.process = task_tgid_nr(current);
	request->head.argument_len = argument_len;
	return request;
}

void request_put(struct request *request)
{
	kref_put(&request->references, request_free);
}

/* Puts a request on the list that the daemon reads; false if there is no daemon. */
static bool enqueue(struct relay *relay, struct request *request, bool wants_answer)
{
	bool alive;

	spin_lock(&relay->lock);
	alive = !relay->dead;
	if (alive) {
		if (wants_answer)
			request->head.id = ++relay->next;
		kref_get(&request->references);
		list_add_tail(&request->list, &relay->unread);
	}
	spin_unlock(&relay->lock);
	if (alive)
		wake_up_interruptible(&relay->readers);
	return alive;
}

/* Nobody waits for a request any more; an answer that comes now is refused. */
static void forget(struct relay *relay, struct request *request)
{
	bool listed;

	spin_lock(&relay->lock);
	listed = !list_empty(&request->list);
	list_del_init(&request->list);
	spin_unlock(&relay->lock);
	if (listed)
		request_put(request);
}

static void interrupt(struct relay *relay, struct request *request)
{
	struct request *notice = request_new(RELAY_INTERRUPT, request->head.id, 0);

	if (notice)
		relay_tell(relay, notice);
}

int relay_ask(struct relay *relay, struct request *request)
{
	int error;

	if (!enqueue(relay, request, true))
		return -ENODEV;
	if (request->head.kind == RELAY_CLOSE) {
		/* The daemon may be the one who closes: by looking at what a descriptor is. */
		if (current->tgid != relay->daemon)
			wait_event_timeout(request->answered, READ_ONCE(request->done), CLOSE_PATIENCE);
	} else if (wait_event_interruptible(request->answered, READ_ONCE(request->done))) {
		/* What has begun is finished, unless the caller was killed; what blocks is cut short. */
		interrupt(relay, request);
		if (wait_event_killable(request->answered, READ_ONCE(request->done)))
			forget(relay, request);
	}
	/* Pairs with the release of whoever has answered. */
	if (!smp_load_acquire(&request->done))
		return -EINTR;
	error = -(int)request->answer.error;
	if (error == -EINTR && signal_pending(current))
		error = -ERESTARTSYS;
	return error;
}

void relay_tell(struct relay *relay, struct request *notice)
{
	enqueue(relay, notice, false);
	request_put(notice);
}

static struct request *next_unread(struct relay *relay)
{
	struct request *request;

	spin_lock(&relay->lock);
	request = list_first_entry_or_null(&relay->unread, struct request, list);
	if (request)
		list_del_init(&request->list);
	if (request && request->head.id)
		list_add_tail(&request->list, &relay->unanswered);
	if (request)
		kref_get(&request->references);
	spin_unlock(&relay->lock);
	return request;
}

static ssize_t relay_read(struct file *file, char __user *to, size_t room, loff_t *position)
{
	struct relay *relay = file->private_data;
	struct request *request;
	size_t len = 0;
	bool notice;
	int error;

	do {
		if (file->f_flags & O_NONBLOCK && list_empty_careful(&relay->unread))
			return -EAGAIN;
		error = wait_event_interruptible(relay->readers, !list_empty_careful(&relay->unread));
		if (error)
			return error;
		request = next_unread(relay);
	} while (!request);

	len = sizeof(request->head) + request->head.argument_len;
	error = 0;
	if (room < len)
		error = -EMSGSIZE;
	else if (copy_to_user(to, &request->head, sizeof(request->head)) ||
		 copy_to_user(to + sizeof(request->head), request->argument, request->head.argument_len))
		error = -EFAULT;
	notice = !request->head.id;
	request_put(request);
	if (notice)
		/* It was off the list already: this is the list's reference. */
		request_put(request);
	return error ?: len;
}

static struct request *take_unanswered(struct relay *relay, u64 id)
{
	struct request *request, *found = NULL;

	spin_lock(&relay->lock);
	list_for_each_entry(request, &relay->unanswered, list)
		if (request->head.id == id) {
			found = request;
			list_del_init(&request->list);
			break;
		}
	spin_unlock(&relay->lock);
	return found;
}

static int take_descriptors(struct request *request, const char __user *from)
{
	u32 i, count = request->answer.descriptors;

	if (!count)
		return 0;
	request->descriptors = kvmalloc_array(count, sizeof(*request->descriptors), GFP_KERNEL);
	request->given = kvcalloc(count, sizeof(*request->given), GFP_KERNEL);
	if (!request->descriptors || !request->given)
		return -ENOMEM;
	if (copy_from_user(request->descriptors, from, count * sizeof(*request->descriptors)))
		return -EFAULT;
	for (i = 0; i < count; i++) {
		request->given[i] = fget(request->descriptors[i].fd);
		if (!request->given[i])
			return -EBADF;
	}
	return 0;
}

static int take_answer(struct request *request, const char __user *from, size_t len)
{
	struct relay_answer *answer = &request->answer;
	size_t expected;

	if (answer->argument_len > request->head.argument_len ||
	    answer->descriptors > RELAY_MOST_DESCRIPTORS || answer->error >= MAX_ERRNO)
		return -EINVAL;
	expected = sizeof(*answer) + answer->argument_len +
		   answer->descriptors * sizeof(struct relay_descriptor);
	if (len != expected)
		return -EINVAL;
	from += sizeof(*answer);
	if (copy_from_user(request->argument, from, answer->argument_len))
		return -EFAULT;
	if (answer->memory >= 0) {
		request->memory = fget(answer->memory);
		if (!request->memory)
			return -EBADF;
	}
	return take_descriptors(request, from + answer->argument_len);
}

static ssize_t relay_write(struct file *file, const char __user *from, size_t len, loff_t *position)
{
	struct relay *relay = file->private_data;
	struct relay_answer answer;
	struct request *request;
	int error;

	if (len < sizeof(answer))
		return -EINVAL;
	if (copy_from_user(&answer, from, sizeof(answer)))
		return -EFAULT;
	request = take_unanswered(relay, answer.id);
	if (!request)
		return -ENOENT;
	request->answer = answer;
	error = take_answer(request, from, len);
	if (error) {
		/* The daemon is wrong, and the caller must not wait for ever. */
		drop_files(request);
		request->answer = (struct relay_answer){ .error = EIO, .memory = -1 };
	}
	/* Whoever sees this sees the answer too. */
	smp_store_release(&request->done, true);
	wake_up_all(&request->answered);
	request_put(request);
	return error ?: len;
}

static long relay_what(struct relay_what *args)
{
	struct file *file = fget(args->fd);

	if (!file)
		return -EBADF;
	args->file = node_cookie(file);
	fput(file);
	return 0;
}

static long relay_setup(struct file *file, unsigned int command, unsigned long argument)
{
	struct relay *relay = file->private_data;
	void __user *user = (void __user *)argument;
	struct relay_export export;
	struct relay_what what;
	u32 number;
	long error;

	switch (command) {
	case RELAY_IOC_VERSION:
		return put_user(RELAY_VERSION, (u32 __user *)user);
	case RELAY_IOC_SYSFS:
		mutex_lock(&relay->setup);
		error = sysfs_add(relay, user);
		mutex_unlock(&relay->setup);
		return error;
	case RELAY_IOC_NODE:
		if (get_user(number, (u32 __user *)user))
			return -EFAULT;
		mutex_lock(&relay->setup);
		error = node_add(relay, number);
		mutex_unlock(&relay->setup);
		return error;
	case RELAY_IOC_EXPORT:
		if (copy_from_user(&export, user, sizeof(export)))
			return -EFAULT;
		error = dmabuf_export(&export);
		if (!error && copy_to_user(user, &export, sizeof(export)))
			error = -EFAULT;
		return error;
	case RELAY_IOC_WHAT:
		if (copy_from_user(&what, user, sizeof(what)))
			return -EFAULT;
		error = relay_what(&what);
		if (!error && copy_to_user(user, &what, sizeof(what)))
			error = -EFAULT;
		return error;
	default:
		return -ENOTTY;
	}
}

static int relay_open(struct inode *inode, struct file *file)
{
	struct relay *relay;
	int error = 0;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	relay = kzalloc(sizeof(*relay), GFP_KERNEL);
	if (!relay)
		return -ENOMEM;
	kref_init(&relay->references);
	mutex_init(&relay->setup);
	spin_lock_init(&relay->lock);
	INIT_LIST_HEAD(&relay->unread);
	INIT_LIST_HEAD(&relay->unanswered);
	INIT_LIST_HEAD(&relay->files);
	INIT_LIST_HEAD(&relay->directories);
	init_waitqueue_head(&relay->readers);
	relay->daemon = current->tgid;

	mutex_lock(&current_lock);
	if (current_relay) {
		error = -EBUSY;
	} else {
		/* Files of nodes can outlive the daemon, and their relay with them. */
		__module_get(THIS_MODULE);
		current_relay = relay;
	}
	mutex_unlock(&current_lock);
	if (error)
		kfree(relay);
	else
		file->private_data = relay;
	return error;
}

/* The daemon is gone: so are its nodes, and who waits for it gets ENODEV. */
static int relay_release(struct inode *inode, struct file *file)
{
	struct relay *relay = file->private_data;
	struct request *request, *next;
	LIST_HEAD(left);

	mutex_lock(&current_lock);
	current_relay = NULL;
	mutex_unlock(&current_lock);
	spin_lock(&relay->lock);
	relay->dead = true;
	list_splice_init(&relay->unread, &left);
	list_splice_init(&relay->unanswered, &left);
	list_for_each_entry_safe(request, next, &left, list) {
		list_del_init(&request->list);
		request->answer = (struct relay_answer){ .error = ENODEV, .memory = -1 };
		/* Whoever sees this sees the answer too. */
		smp_store_release(&request->done, true);
		wake_up_all(&request->answered);
		request_put(request);
	}
	spin_unlock(&relay->lock);
	nodes_remove(relay);
	sysfs_remove(relay);
	relay_put(relay);
	return 0;
}

static const struct file_operations relay_operations = {
	.owner = THIS_MODULE,
	.open = relay_open,
	.release = relay_release,
	.read = relay_read,
	.write = relay_write,
	.unlocked_ioctl = relay_setup,
};

static struct miscdevice relay_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gpu-relay",
	.fops = &relay_operations,
	.mode = 0600,
};

static int __init relay_init(void)
{
	int error = nodes_init();

	if (error)
		return error;
	error = misc_register(&relay_device);
	if (error)
		nodes_exit();
	return error;
}

static void __exit relay_exit(void)
{
	misc_deregister(&relay_device);
	nodes_exit();
}

module_init(relay_init);
module_exit(relay_exit);
MODULE_DESCRIPTION("Relays the devices of simulated GPUs to a daemon");
MODULE_LICENSE("Dual MIT/GPL");
