/* Marks: NOPs of eight bytes with a number in them (0f 1f 84 00, the number, ad de 5a), which cost a machine nothing
 * and which the counting plugin knows when they are translated. Any program may execute them.
 */
#ifndef LAB_MARKS_H
#define LAB_MARKS_H

enum { MARK_SIZE = 8, MARK_BEGIN = 1, MARK_END = 2 };

#define MARK(number) __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00, %c0, 0xad, 0xde, 0x5a" : : "i"(number) : "memory")

#endif
