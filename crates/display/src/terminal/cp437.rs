//! Code page 437, the characters of a PC's own font, in Unicode.

/// Codes 00h to 1Fh: symbols, where other character sets have control characters. 00h looks like a space.
const SIGNS: &str = " ☺☻♥♦♣♠•◘○◙♂♀♪♫☼►◄↕‼¶§▬↨↑↓→←∟↔▲▼";
/// Codes 80h to FFh. FFh looks like a space.
const HIGH: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»\
    ░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀\
    αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■ ";

/// Returns the character that a code shows.
pub(crate) fn character(code: u8) -> char {
    let found = match code {
        0..=0x1f => SIGNS.chars().nth(usize::from(code)),
        0x20..=0x7e => Some(char::from(code)),
        0x7f => Some('⌂'),
        0x80..=0xff => HIGH.chars().nth(usize::from(code - 0x80)),
    };
    found.unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use ratatui_core::text::Span;

    use super::*;

    #[test]
    fn all_codes_have_a_character_of_one_column() {
        assert_eq!((SIGNS.chars().count(), HIGH.chars().count()), (32, 128));
        for code in 0..=255 {
            assert_eq!(Span::raw(character(code).to_string()).width(), 1, "{code:#x}");
        }
    }

    #[test]
    fn characters_of_text_screens_are_right() {
        let characters: String = [0x01, 0x1e, 0x41, 0x7f, 0x80, 0xb0, 0xc4, 0xc9, 0xdb, 0xe1, 0xfe]
            .map(character)
            .iter()
            .collect();
        assert_eq!(characters, "☺▲A⌂Ç░─╔█ß■");
    }
}
