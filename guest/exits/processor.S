/* Rows of privileged and slow instructions of the supervisor. */

#include "rows.inc"

        .text

        begin cpuid, 500000
        again
        push ecx
        mov eax, 1
        xor ecx, ecx
        cpuid
        pop ecx
        end

row rdtsc, 2000000, rdtsc

        begin rdmsr_apic_base, 1000000
        again
        push ecx
        mov ecx, 0x1b
        rdmsr
        pop ecx
        end

        begin rdmsr_tsc, 1000000
        again
        push ecx
        mov ecx, 0x10
        rdmsr
        pop ecx
        end

        begin rdmsr_sysenter, 1000000
        again
        push ecx
        mov ecx, 0x176
        rdmsr
        pop ecx
        end

        begin wrmsr_sysenter, 1000000
        again
        push ecx
        mov ecx, 0x176
        mov eax, 0x100000
        xor edx, edx
        wrmsr
        pop ecx
        end

row cr0_read, 5000000, mov eax, cr0
row cr2_read, 5000000, mov eax, cr2
row cr3_read, 5000000, mov eax, cr3
row cr4_read, 5000000, mov eax, cr4

        begin cr0_write, 500000
        mov eax, cr0
        again
        mov cr0, eax
        end

        begin task_switched_flag, 500000
        mov eax, cr0
        or eax, 8
        again
        mov cr0, eax
        clts
        end

        begin cr2_write, 1000000
        again
        mov cr2, eax
        end

        begin cr3_write, 200000
        mov eax, cr3
        again
        mov cr3, eax
        end

        begin cr4_write, 500000
        mov eax, cr4
        again
        mov cr4, eax
        end

        begin debug_register_read, 1000000
        again
        mov eax, dr7
        end

        begin debug_register_write, 500000
        xor eax, eax
        again
        mov dr0, eax
        end

        begin invlpg, 500000
        mov esi, offset first_task
        again
        invlpg [esi]
        end

        begin invlpg_and_access, 500000
        mov esi, offset first_task
        again
        invlpg [esi]
        mov eax, [esi]
        end

        begin wbinvd, 200000
        again
        wbinvd
        end

/* Where no interrupt waits. */
        begin cli_sti, 2000000
        again
        sti
        cli
        end

        begin pushf_popf, 2000000
        again
        pushf
        popf
        end

        begin pushf_cli_popf, 2000000
        again
        pushf
        cli
        popf
        end

        begin lgdt, 500000
        again
        lgdt gdtr
        end

        begin lidt, 500000
        again
        lidt idtr
        end

        begin sgdt, 500000
        sub esp, 8
        again
        sgdt [esp]
        end_with 8

        begin lldt, 500000
        mov eax, LOCAL_TABLE
        again
        lldt ax
        end

/* With the task marked as free before. */
        begin ltr, 500000
        mov eax, FIRST_TASK
        again
        and byte ptr gdt + FIRST_TASK + 5, 0xfd
        ltr ax
        end

row str, 1000000, str eax
row smsw, 1000000, smsw eax

        begin lmsw, 500000
        smsw eax
        again
        lmsw ax
        end

        begin verr, 1000000
        mov edx, DATA
        again
        verr dx
        end

        begin lar, 1000000
        mov edx, DATA
        again
        lar eax, edx
        end

        begin load_ds, 2000000
        mov edx, DATA
        again
        mov ds, edx
        end

        begin load_es_alternating, 1000000
        mov edx, DATA
        mov ebx, OTHER_DATA
        again
        mov es, edx
        mov es, ebx
        end_with_data

        begin load_fs_user, 1000000
        mov edx, USER_DATA
        again
        mov fs, edx
        end_with_data

        begin load_fs_null, 1000000
        xor edx, edx
        again
        mov fs, edx
        end_with_data

        begin load_ss, 1000000
        mov edx, DATA
        again
        mov ss, edx
        end

        begin push_pop_segments, 500000
        again
        push ds
        push es
        push fs
        push gs
        pop gs
        pop fs
        pop es
        pop ds
        end

        begin les, 1000000
        push DATA
        push 0
        again
        les eax, [esp]
        end_with 8

        begin xchg_lock, 5000000
        mov esi, offset first_task + 92
        again
        lock xadd [esi], eax
        end

        begin xchg_memory, 5000000
        mov esi, offset first_task + 92
        again
        xchg [esi], eax
        end

        begin xchg_high_byte, 5000000
        mov esi, offset cell
        again
        xchg [esi], ah
        end

        begin cmpxchg_memory, 5000000
        mov esi, offset cell
        again
        cmpxchg [esi], edx
        end

        begin cmpxchg_lock, 5000000
        mov esi, offset cell
        again
        lock cmpxchg [esi], edx
        end

        begin cmpxchg8b_lock, 5000000
        mov esi, offset cell
        xor edx, edx
        mov ebx, 1
        push ecx
        again
        push ecx
        xor ecx, ecx
        lock cmpxchg8b [esi]
        pop ecx
        end_with 4

        begin increment_lock, 5000000
        mov esi, offset cell
        again
        lock inc dword ptr [esi]
        end

        begin bit_set_lock, 5000000
        mov esi, offset cell
        again
        lock bts dword ptr [esi], 5
        end

        begin bit_set_string, 5000000
        mov esi, offset cell
        again
        bts [esi], eax
        end

        .local cell
        .comm cell, 8, 8

        .section .note.GNU-stack, "", @progbits
