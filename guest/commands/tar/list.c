/* Lists members as GNU tar does. */

#include <string.h>
#include <time.h>
#include "tar.h"

static void show_details(const struct member *member)
{
    static int width = 19; /* of owner, size and what is between them: it grows */
    char mode[11], size[24], date[32];
    time_t modified = (time_t)member->time;
    mode[0] = strchr("0123456", member->type) ? "-hlcbdp"[member->type - '0'] : '-';
    for (int i = 0; i < 9; i++)
        mode[i + 1] = member->mode >> (8 - i) & 1 ? "rwx"[i % 3] : '-';
    if (member->mode & S_ISUID)
        mode[3] = mode[3] == 'x' ? 's' : 'S';
    if (member->mode & S_ISGID)
        mode[6] = mode[6] == 'x' ? 's' : 'S';
    if (member->mode & S_ISVTX)
        mode[9] = mode[9] == 'x' ? 't' : 'T';
    mode[10] = 0;
    if (member->type == '3' || member->type == '4')
        snprintf(size, sizeof size, "%u,%u", member->device >> 8, member->device & 255);
    else
        snprintf(size, sizeof size, "%llu", (unsigned long long)member->bytes);
    int used = (int)(strlen(member->user) + 1 + strlen(member->group) + 1 + strlen(size));
    if (used > width)
        width = used;
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime(&modified));
    printf("%s %s/%s %*s%s %s ", mode, member->user, member->group, width - used, "", size, date);
}

void list_member(const struct member *member)
{
    if (verbose)
        show_details(member);
    fputs(member->name, stdout);
    if (verbose && member->type == '2')
        printf(" -> %s", member->link);
    if (verbose && member->type == '1')
        printf(" link to %s", member->link);
    putchar('\n');
}
