// SPDX-License-Identifier: MIT OR GPL-2.0
/* /dev/kfd and the render nodes: each call becomes a request to the daemon. */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/device_cgroup.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "relay.h"

/* DRM's major number. */
#define RENDER_MAJOR 226

static int kfd_major;
static struct class *kfd_class;
static struct class *render_class;
static const struct file_operations node_operations;

/* An open file of a node. */
struct node_file {
	struct relay *relay;
	u64 cookie;
	bool is_kfd;
};

/* Memory of the daemon that is mapped: all VMAs that one mmap has become. */
struct mapping {
	struct kref references;
	struct relay *relay;
	struct file *memory;
	/* The first page in the memory file, and what the VMAs call it. */
	pgoff_t start;
	pgoff_t named;
	/* The pages that somebody may have mapped: held, since no rmap knows of these mappings. */
	struct xarray pages;
	/* Sent when the last VMA is gone; made before, so that nothing can fail then. */
	struct request *notice;
};

u64 node_cookie(struct file *file)
{
	return file->f_op == &node_operations ? ((struct node_file *)file->private_data)->cookie : 0;
}

static void allowed_nodes(u64 *allowed)
{
	const short access = DEVCG_ACC_READ | DEVCG_ACC_WRITE;
	int i;

	for (i = 0; i < RELAY_MINORS; i++)
		if (!devcgroup_check_permission(DEVCG_DEV_CHAR, RENDER_MAJOR, RELAY_FIRST_MINOR + i, access))
			allowed[i / 64] |= 1ULL << (i % 64);
}

static bool is_there(struct relay *relay, bool is_kfd, unsigned int minor)
{
	if (is_kfd)
		return minor == 0 && relay->kfd;
	return minor >= RELAY_FIRST_MINOR && minor < RELAY_FIRST_MINOR + RELAY_MINORS &&
	       relay->render[minor - RELAY_FIRST_MINOR];
}

static int node_open(struct inode *inode, struct file *file)
{
	bool is_kfd = imajor(inode) == kfd_major;
	struct relay *relay = relay_get();
	struct node_file *node;
	struct request *request;
	int error = -ENODEV;

	if (!relay)
		return -ENODEV;
	if (!is_there(relay, is_kfd, iminor(inode)))
		goto no_node;
	error = -ENOMEM;
	node = kzalloc(sizeof(*node), GFP_KERNEL);
	if (!node)
		goto no_node;
	node->relay = relay;
	node->is_kfd = is_kfd;
	node->cookie = relay_cookie(relay);
	request = request_new(RELAY_OPEN, node->cookie, 0);
	if (!request)
		goto no_request;
	request->head.device = is_kfd ? 0 : iminor(inode);
	allowed_nodes(request->head.allowed);
	error = relay_ask(relay, request);
	request_put(request);
	if (error)
		goto no_request;
	file->private_data = node;
	return 0;

no_request:
	kfree(node);
no_node:
	relay_put(relay);
	return error;
}

static int node_release(struct inode *inode, struct file *file)
{
	struct node_file *node = file->private_data;
	struct request *request = request_new(RELAY_CLOSE, node->cookie, 0);

	if (request) {
		relay_ask(node->relay, request);
		request_put(request);
	}
	relay_put(node->relay);
	kfree(node);
	return 0;
}

/* Gives the caller its descriptors: all of them, or none. */
static int install(struct request *request)
{
	u32 i, reserved, count = request->answer.descriptors;
	int *numbers, error = 0;

	if (!count)
		return 0;
	numbers = kvmalloc_array(count, sizeof(*numbers), GFP_KERNEL);
	if (!numbers)
		return -ENOMEM;
	for (reserved = 0; reserved < count; reserved++) {
		numbers[reserved] = get_unused_fd_flags(request->descriptors[reserved].flags & O_CLOEXEC);
		if (numbers[reserved] < 0) {
			error = numbers[reserved];
			break;
		}
	}
	for (i = 0; !error && i < count; i++) {
		struct relay_descriptor *to = &request->descriptors[i];
		u64 room = request->head.argument_len;

		if (to->in_memory) {
			if (put_user(numbers[i], (int __user *)to->place))
				error = -EFAULT;
		} else if (to->place > room || room - to->place < sizeof(int)) {
			error = -EIO;
		} else {
			memcpy(request->argument + to->place, &numbers[i], sizeof(int));
		}
	}
	for (i = 0; i < reserved; i++) {
		if (error) {
			put_unused_fd(numbers[i]);
		} else {
			fd_install(numbers[i], request->given[i]);
			request->given[i] = NULL;
		}
	}
	kvfree(numbers);
	return error;
}

static long node_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct node_file *node = file->private_data;
	void __user *user = (void __user *)argument;
	size_t len = _IOC_SIZE(command);
	struct request *request = request_new(RELAY_IOCTL, node->cookie, len);
	int error, installed;

	if (!request)
		return -ENOMEM;
	request->head.number = command;
	error = -EFAULT;
	if (_IOC_DIR(command) & _IOC_WRITE && copy_from_user(request->argument, user, len))
		goto out;
	error = relay_ask(node->relay, request);
	/* An answer that failed has an output all the same, and in places descriptors. */
	if (!smp_load_acquire(&request->done))
		goto out;
	installed = install(request);
	if (installed && !error)
		error = installed;
	if (_IOC_DIR(command) & _IOC_READ &&
	    copy_to_user(user, request->argument, request->answer.argument_len) && !error)
		error = -EFAULT;
out:
	request_put(request);
	return error;
}

static void mapping_free(struct kref *references)
{
	struct mapping *mapping = container_of(references, struct mapping, references);
	struct page *page;
	unsigned long index;

	xa_for_each(&mapping->pages, index, page)
		put_page(page);
	xa_destroy(&mapping->pages);
	fput(mapping->memory);
	relay_tell(mapping->relay, mapping->notice);
	relay_put(mapping->relay);
	kfree(mapping);
}

static void mapping_open(struct vm_area_struct *vma)
{
	struct mapping *mapping = vma->vm_private_data;

	kref_get(&mapping->references);
}

static void mapping_close(struct vm_area_struct *vma)
{
	struct mapping *mapping = vma->vm_private_data;

	kref_put(&mapping->references, mapping_free);
}

/* The page of a fault, held for as long as the mapping lasts. */
static struct page *mapped_page(struct mapping *mapping, pgoff_t index)
{
	struct page *other, *page = xa_load(&mapping->pages, index);

	if (page)
		return page;
	page = shmem_read_mapping_page(mapping->memory->f_mapping, index);
	if (IS_ERR(page))
		return page;
	other = xa_cmpxchg(&mapping->pages, index, NULL, page, GFP_KERNEL);
	if (other) {
		put_page(page);
		if (xa_is_err(other))
			return ERR_PTR(xa_err(other));
		page = other;
	}
	return page;
}

static vm_fault_t mapping_fault(struct vm_fault *vmf)
{
	struct mapping *mapping = vmf->vma->vm_private_data;
	struct page *page = mapped_page(mapping, mapping->start + vmf->pgoff - mapping->named);

	if (IS_ERR(page))
		return PTR_ERR(page) == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	return vmf_insert_pfn(vmf->vma, vmf->address, page_to_pfn(page));
}

static const struct vm_operations_struct mapping_operations = {
	.open = mapping_open,
	.close = mapping_close,
	.fault = mapping_fault,
};

static bool can_be_mapped(const struct request *request)
{
	return request->memory && shmem_mapping(request->memory->f_mapping) &&
	       !(request->answer.memory_offset & ~PAGE_MASK);
}

static int node_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct node_file *node = file->private_data;
	struct request *request;
	struct mapping *mapping;
	int error = -ENOMEM;

	/*
	 * No copies of device memory. But libhsakmt maps what the CPU is not to see privately, without
	 * any access; amdgpu lets it, and so that it stays like that.
	 */
	if (is_cow_mapping(vma->vm_flags)) {
		if (vma->vm_flags & VM_ACCESS_FLAGS)
			return -EINVAL;
		vm_flags_clear(vma, VM_MAYWRITE);
	}
	request = request_new(RELAY_MMAP, node->cookie, 0);
	mapping = kzalloc(sizeof(*mapping), GFP_KERNEL);
	if (!request || !mapping)
		goto fail;
	mapping->notice = request_new(RELAY_UNMAP, 0, 0);
	if (!mapping->notice)
		goto fail;
	request->head.offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	request->head.len = vma->vm_end - vma->vm_start;
	error = relay_ask(node->relay, request);
	if (error)
		goto fail;
	error = -EIO;
	if (!can_be_mapped(request))
		goto fail;

	kref_init(&mapping->references);
	kref_get(&node->relay->references);
	mapping->relay = node->relay;
	mapping->memory = get_file(request->memory);
	mapping->start = request->answer.memory_offset >> PAGE_SHIFT;
	mapping->named = vma->vm_pgoff;
	xa_init(&mapping->pages);
	mapping->notice->head.file = request->answer.mapping;
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	if (node->is_kfd)
		vm_flags_set(vma, VM_DONTCOPY);
	vma->vm_private_data = mapping;
	vma->vm_ops = &mapping_operations;
	request_put(request);
	return 0;

fail:
	if (mapping && mapping->notice)
		request_put(mapping->notice);
	kfree(mapping);
	if (request)
		request_put(request);
	return error;
}

static const struct file_operations node_operations = {
	.owner = THIS_MODULE,
	.open = node_open,
	.release = node_release,
	.unlocked_ioctl = node_ioctl,
	.mmap = node_mmap,
	.llseek = noop_llseek,
};

static int add_render(struct relay *relay, u32 minor)
{
	u32 at = minor - RELAY_FIRST_MINOR;
	struct device *parent, *device, *card;
	char name[16];
	int error;

	if (at >= RELAY_MINORS)
		return -EINVAL;
	if (relay->render[at])
		return -EEXIST;
	snprintf(name, sizeof(name), "gpu-%u", minor);
	parent = root_device_register(name);
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	/* Whose render nodes these are is what clients read there. */
	error = sysfs_create_link(&parent->kobj, &THIS_MODULE->mkobj.kobj, "driver");
	if (error) {
		root_device_unregister(parent);
		return error;
	}
	device = device_create(render_class, parent, MKDEV(RENDER_MAJOR, minor), NULL, "renderD%u", minor);
	if (IS_ERR(device)) {
		root_device_unregister(parent);
		return PTR_ERR(device);
	}
	/* libdrm tells GPUs apart by the primary nodes beside their render nodes; nobody opens them. */
	card = device_create(render_class, parent, MKDEV(0, 0), NULL, "card%u", at);
	if (IS_ERR(card)) {
		device_unregister(device);
		root_device_unregister(parent);
		return PTR_ERR(card);
	}
	relay->parent[at] = parent;
	relay->card[at] = card;
	relay->render[at] = device;
	return 0;
}

int node_add(struct relay *relay, u32 minor)
{
	struct device *device;

	if (minor)
		return add_render(relay, minor);
	if (relay->kfd)
		return -EEXIST;
	device = device_create(kfd_class, NULL, MKDEV(kfd_major, 0), NULL, "kfd");
	if (IS_ERR(device))
		return PTR_ERR(device);
	relay->kfd = device;
	return 0;
}

void nodes_remove(struct relay *relay)
{
	u32 i;

	for (i = 0; i < RELAY_MINORS; i++) {
		if (!relay->render[i])
			continue;
		device_unregister(relay->card[i]);
		device_unregister(relay->render[i]);
		root_device_unregister(relay->parent[i]);
		relay->render[i] = NULL;
	}
}

/* Nodes that everybody may use, as where udev gives them to users. */
static char *node_name(const struct device *device, umode_t *mode)
{
	bool is_kfd = MAJOR(device->devt) == kfd_major;

	if (mode)
		*mode = 0666;
	return kasprintf(GFP_KERNEL, "%s%s", is_kfd ? "" : "dri/", dev_name(device));
}

int nodes_init(void)
{
	int error;

	kfd_major = register_chrdev(0, "kfd", &node_operations);
	if (kfd_major < 0)
		return kfd_major;
	error = __register_chrdev(RENDER_MAJOR, RELAY_FIRST_MINOR, RELAY_MINORS, "drm", &node_operations);
	if (error)
		goto no_render;
	kfd_class = class_create("kfd");
	error = PTR_ERR_OR_ZERO(kfd_class);
	if (error)
		goto no_kfd_class;
	render_class = class_create("drm");
	error = PTR_ERR_OR_ZERO(render_class);
	if (error)
		goto no_render_class;
	kfd_class->devnode = node_name;
	render_class->devnode = node_name;
	return 0;

no_render_class:
	class_destroy(kfd_class);
no_kfd_class:
	__unregister_chrdev(RENDER_MAJOR, RELAY_FIRST_MINOR, RELAY_MINORS, "drm");
no_render:
	unregister_chrdev(kfd_major, "kfd");
	return error;
}

void nodes_exit(void)
{
	class_destroy(render_class);
	class_destroy(kfd_class);
	__unregister_chrdev(RENDER_MAJOR, RELAY_FIRST_MINOR, RELAY_MINORS, "drm");
	unregister_chrdev(kfd_major, "kfd");
}
