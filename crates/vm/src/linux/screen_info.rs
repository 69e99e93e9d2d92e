//! What the kernel learns of the screen: `struct screen_info` at the start of the zero page (zero-page.rst).
//!
//! A boot loader has it from the BIOS; here it is that of mode 3, in which the board leaves the display adapter.

use ring3_core::memory::{Memory, MemoryError};

use super::ZERO_PAGE;

/// Fields that are not 0 (Linux, include/uapi/linux/screen_info.h), by their offsets: the cursor is at the upper left,
/// and the page 0.
const FIELDS: [(u64, u8); 6] = [
    (0x06, 3),    // orig_video_mode
    (0x07, 80),   // orig_video_cols
    (0x0a, 0x03), // orig_video_ega_bx: colour, all of the memory
    (0x0e, 25),   // orig_video_lines
    (0x0f, 1),    // orig_video_isVGA: a VGA in a text mode
    (0x10, 16),   // orig_video_points: the height of a character
];

/// Tells the kernel that was loaded of the text screen. Without, it takes the machine for one that has no screen.
pub(crate) fn tell(memory: &mut Memory) -> Result<(), MemoryError> {
    FIELDS.iter().try_for_each(|(offset, value)| memory.load_image(ZERO_PAGE + offset, &[*value]))
}
