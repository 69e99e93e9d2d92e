/* Asynchronous messages: a table in the sender's memory (tern/ipc.h, SENDA). The kernel keeps its address,
   and for each receiver the set of processes whose tables have something for it. */

#include "kernel.h"

static uint32_t entry_address(const struct process *sender, uint32_t index)
{
    return sender->offers + index * sizeof(struct asynchronous);
}

static void set_done(struct process *sender, uint32_t index, int32_t done)
{
    /* If the sender has unmapped its table, it will not see it. */
    copy_out(sender, entry_address(sender, index) + offsetof(struct asynchronous, done), &done, sizeof done);
}

/* Delivers the entry if its destination waits for it, or notes that it is there. */
static void offer_entry(struct process *sender, uint32_t index, const struct asynchronous *entry)
{
    struct process *to = process_at(entry->to);
    uint32_t slot = SLOT_OF(sender->endpoint);
    int error;

    if (to == NULL || to == sender || (to - processes < FIRST_SLOT && to != &processes[SYSTEM])) {
        set_done(sender, index, -EDEADEND);
        return;
    }
    if ((error = check_destination(sender, to)) != 0) {
        set_done(sender, index, error);
        return;
    }
    if (!can_deliver(sender, to)) {
        to->offered[slot / 32] |= 1u << slot % 32;
        return;
    }
    sender->sent++;
    set_done(sender, index, 1);
    deliver(to, sender->endpoint, &entry->message);
}

int offer(struct process *sender, uint32_t table, uint32_t entries)
{
    if (entries > ASYNCHRONOUS_MAX || table >= KERNEL_BASE)
        return -EINVAL;
    withdraw_offers(sender);
    sender->offers = table;
    sender->offer_count = entries;
    for (uint32_t i = 0; i < entries; i++) {
        struct asynchronous entry;
        if (copy_in(sender, &entry, entry_address(sender, i), sizeof entry) != 0)
            return -EFAULT;
        if (entry.done == 0)
            offer_entry(sender, i, &entry);
    }
    return 0;
}

/* Delivers the first entry of `sender` for `receiver`. Returns whether there was one. */
static int take_from(struct process *sender, struct process *receiver)
{
    for (uint32_t i = 0; i < sender->offer_count; i++) {
        struct asynchronous entry;
        if (copy_in(sender, &entry, entry_address(sender, i), sizeof entry) != 0)
            return 0;
        /* The table is the sender's, who may have changed it since: so all is checked again. */
        if (entry.done != 0 || process_at(entry.to) != receiver || check_destination(sender, receiver) != 0)
            continue;
        sender->sent++;
        set_done(sender, i, 1);
        deliver(receiver, sender->endpoint, &entry.message);
        return 1;
    }
    return 0;
}

int take_offer(struct process *receiver)
{
    for (uint32_t word = 0; word < SLOTS / 32; word++)
        for (uint32_t bits = receiver->offered[word]; bits != 0; bits &= bits - 1) {
            uint32_t slot = word * 32 + lowest_bit(bits);
            struct process *sender = &processes[slot];
            if (!can_deliver(sender, receiver))
                continue;
            if (take_from(sender, receiver))
                return 1;
            receiver->offered[word] &= ~(1u << slot % 32);
        }
    return 0;
}

void withdraw_offers(struct process *sender)
{
    uint32_t slot = SLOT_OF(sender->endpoint);

    if (sender->offer_count == 0)
        return;
    sender->offer_count = 0;
    for (struct process *other = processes; other < processes + SLOTS; other++)
        other->offered[slot / 32] &= ~(1u << slot % 32);
}
