/* SPDX-License-Identifier: GPL-2.0 */
/* The kernel's types and barriers that ring.h needs, for a program. */
#ifndef XENVMNIC_TESTS_KERNEL_H
#define XENVMNIC_TESTS_KERNEL_H

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define min(a, b)		((a) < (b) ? (a) : (b))
#define max(a, b)		((a) > (b) ? (a) : (b))
#define clamp(v, low, high)	min(max(v, low), high)
#define barrier()		__asm__ volatile("" ::: "memory")

#endif
