//! The description of the screen for the kernel: `struct screen_info` at the start of the zero page
//! (zero-page.rst).
//!
//! A boot loader gets it from the BIOS. Here it describes mode 3, in which the board leaves the display
//! adapter.

use ring3_core::memory::{Memory, MemoryError};

use super::ZERO_PAGE;

/// The fields that are not 0, by their offsets (Linux, include/uapi/linux/screen_info.h). The cursor is at
/// the upper left, and the page is 0.
const FIELDS: [(u64, u8); 6] = [
    (0x06, 3),    // orig_video_mode
    (0x07, 80),   // orig_video_cols
    (0x0a, 0x03), // orig_video_ega_bx: colour, all of the memory
    (0x0e, 25),   // orig_video_lines
    (0x0f, 1),    // orig_video_isVGA: a VGA in a text mode
    (0x10, 16),   // orig_video_points: the height of a character
];

/// Tells the loaded kernel of the text screen. Otherwise it assumes that the machine has no screen.
pub(crate) fn tell(memory: &mut Memory) -> Result<(), MemoryError> {
    FIELDS.iter().try_for_each(|(offset, value)| memory.load_image(ZERO_PAGE + offset, &[*value]))
}
