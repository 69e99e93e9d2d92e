//! Pictures of screens, as machines send them (QMP `x-ring3-screen`).

use ring3_core::display::{Cell, Picture, Pixels, TextScreen};
use serde::Deserialize;
use serde_json::Value;

/// The most cells or pixels that are believed.
const MOST: usize = 1 << 18;

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Sent {
    Off,
    Text {
        columns: usize,
        rows: usize,
        cells: Vec<(u8, u32, u32, u8)>,
        cursor: Option<(usize, usize)>,
    },
    Pixels {
        columns: usize,
        rows: usize,
        colours: Vec<u32>,
        width: usize,
        height: usize,
    },
}

/// Returns the picture in `message`, and its size in the machine. There is none if the screen is off, or the message
/// makes no sense.
pub(crate) fn picture(message: Value) -> Option<(Picture, (usize, usize))> {
    let empty = || Pixels { width: 0, height: 0, colours: Vec::new() };
    let is_whole = |columns: usize, rows: usize, length: usize| {
        columns.checked_mul(rows) == Some(length) && length <= MOST
    };
    match serde_json::from_value(message).ok()? {
        Sent::Text { columns, rows, cells, cursor } if is_whole(columns, rows, cells.len()) => {
            let cell = |(character, foreground, background, blinks)| Cell {
                character,
                foreground,
                background,
                blinks: blinks != 0,
            };
            let cells = cells.into_iter().map(cell).collect();
            let cursor = cursor.filter(|(column, row)| *column < columns && *row < rows);
            let text = TextScreen { columns, rows, cells, cursor, pixels: empty() };
            Some((Picture::Text(text), (columns, rows)))
        }
        Sent::Pixels { columns, rows, colours, width, height }
            if is_whole(columns, rows, colours.len()) =>
        {
            let pixels = Pixels { width: columns, height: rows, colours };
            Some((Picture::Pixels(pixels), (width, height)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pictures_are_believed_only_if_they_are_whole() {
        let cells = [[65, 0xaaaaaa, 0, 0], [66, 0xff0000, 0, 1]];
        let text = |rows: usize, cursor: [usize; 2]| {
            picture(json!({
                "kind": "text", "columns": 2, "rows": rows, "cells": cells, "cursor": cursor,
            }))
        };
        let Some((Picture::Text(screen), (2, 1))) = text(1, [1, 0]) else { panic!("no text") };
        assert_eq!((screen.text(), screen.cursor), ("AB\n".to_owned(), Some((1, 0))));
        assert!(
            matches!(text(1, [0, 1]), Some((Picture::Text(screen), _)) if screen.cursor.is_none())
        );
        assert_eq!(text(2, [0, 0]), None);
        assert_eq!(text(usize::MAX, [0, 0]), None);
        assert_eq!(picture(json!({ "kind": "off" })), None);
        assert_eq!(picture(json!({ "kind": "film" })), None);
        let pixels = json!({
            "kind": "pixels", "columns": 1, "rows": 2, "colours": [1, 2], "width": 640, "height": 480,
        });
        assert!(matches!(picture(pixels), Some((Picture::Pixels(_), (640, 480)))));
    }
}
