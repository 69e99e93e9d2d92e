/* Sorting and searching. */

#include <stdint.h>
#include <stdlib.h>

typedef int compare_t(const void *, const void *);

static void swap(char *a, char *b, size_t bytes)
{
    while (bytes--) {
        char c = *a;

        *a++ = *b;
        *b++ = c;
    }
}

/* Moves an element down a heap of `count` elements until no child is larger. */
static void sift(char *elements, size_t at, size_t count, size_t bytes, compare_t *compare)
{
    size_t child;

    while ((child = 2 * at + 1) < count) {
        if (child + 1 < count && compare(elements + child * bytes, elements + (child + 1) * bytes) < 0)
            child++;
        if (compare(elements + at * bytes, elements + child * bytes) >= 0)
            return;
        swap(elements + at * bytes, elements + child * bytes, bytes);
        at = child;
    }
}

/* Heap sort: no memory, no recursion, and no order of elements for which it is slow. */
void qsort(void *elements, size_t count, size_t bytes, compare_t *compare)
{
    size_t n;

    for (n = count / 2; n-- > 0;)
        sift(elements, n, count, bytes, compare);
    for (n = count; n-- > 1;) {
        swap(elements, (char *)elements + n * bytes, bytes);
        sift(elements, 0, n, bytes, compare);
    }
}

void *bsearch(const void *key, const void *elements, size_t count, size_t bytes, compare_t *compare)
{
    while (count) {
        const char *middle = (const char *)elements + count / 2 * bytes;
        int order = compare(key, middle);

        if (!order)
            return (void *)middle;
        if (order > 0) {
            elements = middle + bytes;
            count--;
        }
        count /= 2;
    }
    return NULL;
}
