// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * dma-bufs: names of the daemon's objects. They look like dma-bufs to whoever has one, and no device
 * can be attached to them, since there is none.
 */
#include <linux/dma-buf.h>
#include <linux/fcntl.h>
#include <linux/module.h>
#include <linux/version.h>

#include "relay.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif

static struct sg_table *map(struct dma_buf_attachment *attachment, enum dma_data_direction direction)
{
	return ERR_PTR(-ENODEV);
}

static void unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
		  enum dma_data_direction direction)
{
}

static void release(struct dma_buf *buffer)
{
}

static const struct dma_buf_ops operations = {
	.map_dma_buf = map,
	.unmap_dma_buf = unmap,
	.release = release,
};

int dmabuf_export(struct relay_export *args)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *buffer;

	info.ops = &operations;
	info.size = args->size;
	info.flags = args->flags & O_ACCMODE;
	info.exp_name = "amdgpu";
	/* (It has to be something.) */
	info.priv = THIS_MODULE;
	buffer = dma_buf_export(&info);
	if (IS_ERR(buffer))
		return PTR_ERR(buffer);
	args->fd = dma_buf_fd(buffer, 0);
	if (args->fd < 0)
		dma_buf_put(buffer);
	return args->fd < 0 ? args->fd : 0;
}
