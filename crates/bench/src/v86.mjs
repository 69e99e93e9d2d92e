// Boots a disc or a kernel in v86 with its first serial port on standard input and output:
//     node --eval SCRIPT LIBRARY FIRMWARE VIDEO-FIRMWARE MEMORY DISC
//     node --eval SCRIPT LIBRARY FIRMWARE VIDEO-FIRMWARE MEMORY KERNEL INITRD COMMAND-LINE
// LIBRARY is the path of libv86.mjs, MEMORY is in MiB.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [library, firmware, video, memory, image, initrd, cmdline] = process.argv.slice(1);
const { V86 } = await import(pathToFileURL(library));

function file(path) {
    const bytes = readFileSync(path);
    return { buffer: bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) };
}

const machine = new V86({
    wasm_path: library.replace("libv86.mjs", "v86.wasm"),
    bios: file(firmware),
    vga_bios: file(video),
    memory_size: memory << 20,
    vga_memory_size: 2 << 20,
    ...(initrd ? { bzimage: file(image), initrd: file(initrd), cmdline } : { cdrom: file(image) }),
    autostart: true,
    disable_keyboard: true,
    disable_mouse: true,
    disable_speaker: true,
});
machine.add_listener("serial0-output-byte", (byte) => process.stdout.write(Uint8Array.of(byte)));
process.stdin.on("data", (bytes) => machine.serial0_send(bytes.toString("latin1")));
process.stdin.on("end", () => process.exit());
