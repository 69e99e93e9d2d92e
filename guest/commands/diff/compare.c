/* The differences of two files: Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), section 4b,
   which needs memory for one row only as it halves the problem. */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "diff.h"

static struct lines *a, *b;
static int *forth, *back;          /* how far each diagonal has got, from the start and from the end; 0 is in
                                      the middle */

static int same(int x, int y)
{
    return strcmp(a->line[x], b->line[y]) == 0;
}

/* Finds the middle of a shortest way: a point that one goes through. The parts differ in their first and last
   lines. */
static void find_middle(int x, int x_end, int y, int y_end, int *middle_x, int *middle_y)
{
    int first = x - y, last = x_end - y_end, odd = (last - first) & 1;
    forth[first + 1] = x;
    back[last - 1] = x_end;
    for (int steps = 0;; steps++) {
        for (int d = first - steps; d <= first + steps; d += 2) {
            int at = d == first - steps || (d != first + steps && forth[d - 1] < forth[d + 1])
                         ? forth[d + 1]
                         : forth[d - 1] + 1;
            while (at < x_end && at - d < y_end && at >= x && at - d >= y && same(at, at - d))
                at++;
            forth[d] = at;
            if (odd && d >= last - (steps - 1) && d <= last + (steps - 1) && at >= back[d]) {
                *middle_x = at;
                *middle_y = at - d;
                return;
            }
        }
        for (int d = last - steps; d <= last + steps; d += 2) {
            int at = d == last + steps || (d != last - steps && back[d - 1] < back[d + 1]) ? back[d - 1]
                                                                                           : back[d + 1] - 1;
            while (at > x && at - d > y && at <= x_end && at - d <= y_end && same(at - 1, at - d - 1))
                at--;
            back[d] = at;
            if (!odd && d >= first - steps && d <= first + steps && forth[d] >= at) {
                *middle_x = at;
                *middle_y = at - d;
                return;
            }
        }
    }
}

static void compare_parts(int x, int x_end, int y, int y_end)
{
    int middle_x, middle_y;
    while (x < x_end && y < y_end && same(x, y))
        x++, y++;
    while (x < x_end && y < y_end && same(x_end - 1, y_end - 1))
        x_end--, y_end--;
    if (x == x_end || y == y_end) {
        memset(a->changed + x, 1, x_end - x);
        memset(b->changed + y, 1, y_end - y);
        return;
    }
    find_middle(x, x_end, y, y_end, &middle_x, &middle_y);
    compare_parts(x, middle_x, y, middle_y);
    compare_parts(middle_x, x_end, middle_y, y_end);
}

void compare(struct lines *first, struct lines *second)
{
    /* The search from the end begins at a diagonal of at most either count, and goes half of both further. */
    size_t diagonals = 4 * ((size_t)first->count + second->count) + 8;
    a = first;
    b = second;
    int *memory = need(NULL, 2 * diagonals * sizeof *memory);
    forth = memory + diagonals / 2;
    back = forth + diagonals;
    compare_parts(0, a->count, 0, b->count);
    free(memory);
}
