// SPDX-License-Identifier: MIT OR GPL-2.0
/* Files below /sys/class/kfd/kfd, whose text the daemon has given. */
#include <linux/device.h>
#include <linux/device_cgroup.h>
#include <linux/kobject.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/uaccess.h>

#include "relay.h"

#define RENDER_MAJOR 226
/* What sysfs can show of a file. */
#define MOST_DATA PAGE_SIZE
#define MOST_PATH 256

struct relay_directory {
	struct list_head list;
	struct kobject *object;
	char path[];
};

struct relay_file {
	struct list_head list;
	struct kobj_attribute attribute;
	struct kobject *directory;
	u32 guard;
	u32 len;
	char data[];
};

static ssize_t show(struct kobject *object, struct kobj_attribute *attribute, char *to)
{
	struct relay_file *file = container_of(attribute, struct relay_file, attribute);

	/* A GPU's files are not for those whose device cgroup keeps them from its render node. */
	if (file->guard && devcgroup_check_permission(DEVCG_DEV_CHAR, RENDER_MAJOR, file->guard,
						      DEVCG_ACC_READ | DEVCG_ACC_WRITE))
		return -EPERM;
	memcpy(to, file->data, file->len);
	return file->len;
}

/* The directory of a path that has no slash at its end, made where it is not there. */
static struct kobject *directory(struct relay *relay, const char *path)
{
	struct relay_directory *directory_, *known;
	struct kobject *parent = &relay->kfd->kobj;
	const char *slash = strrchr(path, '/');

	list_for_each_entry(known, &relay->directories, list)
		if (!strcmp(known->path, path))
			return known->object;
	if (slash) {
		char *above = kstrndup(path, slash - path, GFP_KERNEL);

		if (!above)
			return ERR_PTR(-ENOMEM);
		parent = directory(relay, above);
		kfree(above);
		if (IS_ERR(parent))
			return parent;
	}
	directory_ = kzalloc(sizeof(*directory_) + strlen(path) + 1, GFP_KERNEL);
	if (!directory_)
		return ERR_PTR(-ENOMEM);
	strcpy(directory_->path, path);
	directory_->object = kobject_create_and_add(slash ? slash + 1 : path, parent);
	if (!directory_->object) {
		kfree(directory_);
		return ERR_PTR(-ENOMEM);
	}
	/* Those inside come first when all are removed. */
	list_add(&directory_->list, &relay->directories);
	return directory_->object;
}

static int add(struct relay *relay, const struct relay_sysfs *args, char *path)
{
	char *slash = strrchr(path, '/');
	struct kobject *in = &relay->kfd->kobj;
	struct relay_file *file;
	int error;

	if (slash) {
		*slash = 0;
		in = directory(relay, path);
		if (IS_ERR(in))
			return PTR_ERR(in);
	}
	file = kzalloc(sizeof(*file) + args->data_len, GFP_KERNEL);
	if (!file)
		return -ENOMEM;
	error = -EFAULT;
	if (copy_from_user(file->data, (void __user *)args->data, args->data_len))
		goto fail;
	error = -ENOMEM;
	file->attribute.attr.name = kstrdup(slash ? slash + 1 : path, GFP_KERNEL);
	if (!file->attribute.attr.name)
		goto fail;
	sysfs_attr_init(&file->attribute.attr);
	file->attribute.attr.mode = 0444;
	file->attribute.show = show;
	file->directory = in;
	file->guard = args->guard;
	file->len = args->data_len;
	error = sysfs_create_file(in, &file->attribute.attr);
	if (error)
		goto fail;
	list_add(&file->list, &relay->files);
	return 0;

fail:
	kfree(file->attribute.attr.name);
	kfree(file);
	return error;
}

int sysfs_add(struct relay *relay, const struct relay_sysfs __user *from)
{
	struct relay_sysfs args;
	char *path;
	int error;

	if (copy_from_user(&args, from, sizeof(args)))
		return -EFAULT;
	if (!relay->kfd || !args.path_len || args.path_len > MOST_PATH || args.data_len > MOST_DATA)
		return -EINVAL;
	path = memdup_user_nul((void __user *)args.path, args.path_len);
	if (IS_ERR(path))
		return PTR_ERR(path);
	error = add(relay, &args, path);
	kfree(path);
	return error;
}

/* Takes all away, and /dev/kfd, which has them, last. */
void sysfs_remove(struct relay *relay)
{
	struct relay_directory *directory, *next_directory;
	struct relay_file *file, *next_file;

	list_for_each_entry_safe(file, next_file, &relay->files, list) {
		sysfs_remove_file(file->directory, &file->attribute.attr);
		kfree(file->attribute.attr.name);
		kfree(file);
	}
	list_for_each_entry_safe(directory, next_directory, &relay->directories, list) {
		kobject_put(directory->object);
		kfree(directory);
	}
	INIT_LIST_HEAD(&relay->files);
	INIT_LIST_HEAD(&relay->directories);
	if (relay->kfd)
		device_unregister(relay->kfd);
	relay->kfd = NULL;
}
