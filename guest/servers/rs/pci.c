/* Devices of PCI: found once through configuration mechanism 1 (PCI Local Bus Specification 3.0, section
   3.2.2.3.2) and given to the services that are configured for them. */

#include <stdio.h>
#include <string.h>
#include <tern/hal.h>
#include "rs.h"

#define ADDRESS_PORT 0xcf8
#define DATA_PORT 0xcfc
#define ENABLE 0x80000000u

#define DEVICES 64

/* Offsets in the configuration space (section 6.1). */
#define AT_ID 0x00
#define AT_COMMAND 0x04
#define AT_CLASS 0x08
#define AT_HEADER 0x0c
#define AT_BAR 0x10
#define AT_BUSES 0x18   /* of a bridge */
#define AT_LINE 0x3c

#define COMMAND_IO 1
#define COMMAND_MEMORY 2
#define COMMAND_MASTER 4

struct device {
    uint32_t address;   /* as the address port wants it */
    uint16_t vendor, device;
    uint8_t class, subclass;
    const struct service *owner;
};

static struct device devices[DEVICES];
static uint32_t device_count;
static uint8_t bus_seen[256];

static uint32_t read(uint32_t address, uint32_t offset)
{
    uint32_t value = ENABLE | address | offset;
    hal_call(HAL_OUT_DOUBLE, ADDRESS_PORT, &value, NULL);
    value = ~0u;
    hal_call(HAL_IN_DOUBLE, DATA_PORT, &value, NULL);
    return value;
}

static void write(uint32_t address, uint32_t offset, uint32_t value)
{
    uint32_t select = ENABLE | address | offset;
    hal_call(HAL_OUT_DOUBLE, ADDRESS_PORT, &select, NULL);
    hal_call(HAL_OUT_DOUBLE, DATA_PORT, &value, NULL);
}

static void add(uint32_t address, uint32_t id)
{
    uint32_t class = read(address, AT_CLASS);
    if (device_count < DEVICES)
        devices[device_count++] =
            (struct device){address, id & 0xffff, id >> 16, class >> 24, class >> 16 & 0xff, NULL};
}

static void scan_bus(uint32_t bus);

static void scan_device(uint32_t address)
{
    uint32_t functions = 1;
    for (uint32_t function = 0; function < functions; function++) {
        uint32_t at = address | function << 8;
        uint32_t id = read(at, AT_ID);
        if ((id & 0xffff) == 0xffff)
            continue;
        uint32_t header = read(at, AT_HEADER) >> 16 & 0xff;
        if (function == 0 && header & 0x80)
            functions = 8;
        add(at, id);
        if ((header & 0x7f) == 1)
            scan_bus(read(at, AT_BUSES) >> 8 & 0xff);
    }
}

/* Each bus once, so that bridges that name each other end nowhere. */
static void scan_bus(uint32_t bus)
{
    if (bus_seen[bus])
        return;
    bus_seen[bus] = 1;
    for (uint32_t device = 0; device < 32; device++)
        scan_device(bus << 16 | device << 11);
}

void pci_scan(void)
{
    uint32_t value = ENABLE;
    hal_call(HAL_OUT_DOUBLE, ADDRESS_PORT, &value, NULL);
    value = 0;
    hal_call(HAL_IN_DOUBLE, ADDRESS_PORT, &value, NULL);
    if (value == ENABLE)
        scan_bus(0);
}

static int matches(const struct service *service, const struct device *device)
{
    for (uint32_t i = 0; i < service->pci_ids; i++) {
        const struct pci_id *id = &service->pci[i];
        if (id->by_class ? id->first == device->class && id->second == device->subclass
                         : id->first == device->vendor && id->second == device->device)
            return 1;
    }
    return 0;
}

static struct device *find(const struct service *service)
{
    for (uint32_t i = 0; i < device_count; i++)
        if (devices[i].owner == service)
            return &devices[i];
    for (uint32_t i = 0; i < device_count; i++) {
        if (!devices[i].owner && matches(service, &devices[i])) {
            devices[i].owner = service;
            return &devices[i];
        }
    }
    return NULL;
}

/* The range behind a base address register (section 6.2.5.1): its size is known from the bits that stay 0.
   Returns how many registers it takes. */
static uint32_t add_range(const struct device *device, uint32_t offset, struct rights *rights)
{
    uint32_t base = read(device->address, offset);
    write(device->address, offset, ~0u);
    uint32_t size = read(device->address, offset);
    write(device->address, offset, base);
    if (size == 0 || size == ~0u)
        return 1;
    if (base & 1) {
        uint32_t first = base & 0xfffc, bytes = (~(size & 0xfffc) + 1) & 0xffff;
        if (first && bytes && rights->port_ranges < PORT_RANGES)
            rights->ports[rights->port_ranges++] = (struct port_range){first, first + bytes - 1};
        return 1;
    }
    uint32_t wide = (base & 6) == 4;
    uint32_t high = wide ? read(device->address, offset + 4) : 0;
    uint32_t bytes = ~(size & ~15u) + 1;
    if ((base & ~15u) && high == 0 && rights->memory_ranges < MEMORY_RANGES)
        rights->memory[rights->memory_ranges++] =
            (struct memory_range){base & ~15u, (bytes + 0xfff) & ~0xfffu};
    return wide ? 2 : 1;
}

int pci_assign(const struct service *service, struct rights *rights, char *description, size_t bytes)
{
    struct device *device = find(service);
    if (!device)
        return 0;
    uint32_t command = read(device->address, AT_COMMAND) & 0xffff;
    /* Registers must not decode addresses while they hold all ones. */
    write(device->address, AT_COMMAND, command & ~(COMMAND_IO | COMMAND_MEMORY));
    for (uint32_t i = 0; i < 6;)
        i += add_range(device, AT_BAR + 4 * i, rights);
    write(device->address, AT_COMMAND, command | COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER);
    uint32_t line = read(device->address, AT_LINE) & 0xff;
    if (line > 0 && line < 16)
        rights->interrupts |= 1u << line;
    snprintf(description, bytes, "pci=%x:%x.%x,%04x:%04x", (unsigned)(device->address >> 16),
             (unsigned)(device->address >> 11 & 31), (unsigned)(device->address >> 8 & 7), device->vendor,
             device->device);
    return 1;
}
