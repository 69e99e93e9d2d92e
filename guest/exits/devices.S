/* Rows that access devices: by memory, and by ports. */

#include "rows.inc"

#define APIC 0xfee00000
#define IO_APIC 0xfec00000
#define HPET 0xfed00000
#define TEXT 0xb8000
/* In the frame buffer, beyond what text mode has of it. */
#define IN_FRAME_BUFFER 0x100000

        .text

row mmio_apic_id, 1000000, mov eax, ds:[APIC + 0x20]
row mmio_apic_version, 1000000, mov eax, ds:[APIC + 0x30]
row mmio_apic_tpr, 1000000, mov eax, ds:[APIC + 0x80]
row mmio_apic_isr, 1000000, mov eax, ds:[APIC + 0x110]
row mmio_apic_irr, 1000000, mov eax, ds:[APIC + 0x210]
row mmio_apic_icr, 1000000, mov eax, ds:[APIC + 0x300]

        begin mmio_apic_compared, 1000000
        again
        test dword ptr ds:[APIC + 0x300], 0x1000
        end

        begin mmio_apic_count, 1000000
        mov dword ptr ds:[APIC + 0x380], 0xffffffff
        again
        mov eax, ds:[APIC + 0x390]
        end

        begin mmio_apic_tpr_write, 1000000
        again
        mov ds:[APIC + 0x80], eax
        end

        begin mmio_apic_eoi, 1000000
        again
        mov ds:[APIC + 0xb0], eax
        end

        begin mmio_apic_timer_write, 500000
        mov eax, 0x10000000
        again
        mov ds:[APIC + 0x380], eax
        end

        begin mmio_io_apic_select, 1000000
        again
        mov ds:[IO_APIC], eax
        end

        begin mmio_io_apic_read, 1000000
        mov dword ptr ds:[IO_APIC], 0x12
        again
        mov eax, ds:[IO_APIC + 0x10]
        end

        begin mmio_io_apic_write, 1000000
        mov dword ptr ds:[IO_APIC], 0x3e
        mov eax, 0x10000
        again
        mov ds:[IO_APIC + 0x10], eax
        end

        begin mmio_hpet_period, 1000000, has_hpet
        again
        mov eax, ds:[HPET + 4]
        end

        begin mmio_hpet_counter, 1000000, has_hpet
        again
        mov eax, ds:[HPET + 0xf0]
        end

/* By bytes, as drivers for text screens write. */
row vga_text_read, 1000000, mov al, ds:[TEXT + 2000]

        begin vga_text_write, 1000000
        mov ax, 0x0720
        again
        mov ds:[TEXT + 2000], ax
        end

        begin vga_text_scroll, 2000
        again
        push ecx
        cld
        mov esi, TEXT + 160
        mov edi, TEXT
        mov ecx, 960
        rep movsd
        pop ecx
        end

        begin frame_buffer_write, 5000000, has_frame_buffer
        mov esi, adapter
        again
        mov [esi + IN_FRAME_BUFFER], eax
        end

        begin frame_buffer_read, 5000000, has_frame_buffer
        mov esi, adapter
        again
        mov eax, [esi + IN_FRAME_BUFFER]
        end

row port_pit_read, 500000, in al, 0x40
row port_pic_mask_read, 1000000, in al, 0x21
row port_post_write, 1000000, out 0x80, al
row port_speaker_read, 1000000, in al, 0x61

        begin port_pic_mask_write, 1000000
        mov al, 0xff
        again
        out 0x21, al
        end

        begin port_pic_end, 1000000
        mov al, 0x20
        again
        out 0x20, al
        end

        begin port_rtc_read, 500000
        mov al, 0xf
        out 0x70, al
        again
        in al, 0x71
        end

        begin port_uart_status_read, 1000000
        mov edx, 0x3fd
        again
        in al, dx
        end

        begin port_keyboard_status_read, 1000000
        again
        in al, 0x64
        end

        begin port_nothing_read, 1000000
        mov edx, 0x5000
        again
        in al, dx
        end

        begin port_vga_status_read, 1000000
        mov edx, 0x3da
        again
        in al, dx
        end

        begin port_pci_address_write, 1000000
        mov edx, 0xcf8
        mov eax, 0x80000000
        again
        out dx, eax
        end

        begin port_pci_config_read, 1000000
        mov edx, 0xcf8
        mov eax, 0x80000000
        out dx, eax
        mov edx, 0xcfc
        again
        in eax, dx
        end

        begin port_pm_timer_read, 500000
        mov edx, 0x608
        again
        in eax, dx
        end

        .section .note.GNU-stack, "", @progbits
