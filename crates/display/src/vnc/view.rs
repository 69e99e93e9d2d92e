//! Tracks the screen that a client shows, and which parts of it are out of date.

use std::borrow::Cow;

use ring3_core::display::Pixels;

/// A rectangle of a screen, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Rect {
    /// Returns the rectangle of a whole screen of this size.
    pub(crate) fn all(width: usize, height: usize) -> Rect {
        Rect { x: 0, y: 0, width, height }
    }

    /// Returns its parts of `size` by `size` pixels, smaller at its right and lower edges, row by row from
    /// its upper left corner.
    pub(crate) fn parts(self, size: usize) -> impl Iterator<Item = Rect> {
        let corners = (0..self.height)
            .step_by(size)
            .flat_map(move |y| (0..self.width).step_by(size).map(move |x| (x, y)));
        corners.map(move |(x, y)| Rect {
            x: self.x + x,
            y: self.y + y,
            width: size.min(self.width - x),
            height: size.min(self.height - y),
        })
    }

    /// Returns the smallest rectangle that contains both.
    pub(crate) fn union(self, other: Rect) -> Rect {
        let (x, y) = (self.x.min(other.x), self.y.min(other.y));
        let right = (self.x + self.width).max(other.x + other.width);
        let bottom = (self.y + self.height).max(other.y + other.height);
        Rect { x, y, width: right - x, height: bottom - y }
    }

    /// Returns the part of it that lies on a screen of this size.
    fn clipped(self, width: usize, height: usize) -> Rect {
        let (x, y) = (self.x.min(width), self.y.min(height));
        Rect { x, y, width: self.width.min(width - x), height: self.height.min(height - y) }
    }

    /// Returns the columns and rows of the tiles that it touches.
    fn tiles(self) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        if self.width == 0 || self.height == 0 {
            return (0..0, 0..0);
        }
        let range = |from: usize, length: usize| from / TILE..(from + length).div_ceil(TILE);
        (range(self.x, self.width), range(self.y, self.height))
    }
}

/// The side of the squares by which changes are found, in pixels.
const TILE: usize = 16;
/// The most rectangles in an update; a larger number is sent as one rectangle.
const MOST_RECTANGLES: usize = 1000;

/// Returns the rows of `rect` in `pixels`.
pub(crate) fn rows(pixels: &Pixels, rect: Rect) -> impl Iterator<Item = &[u32]> {
    pixels
        .colours
        .chunks_exact(pixels.width.max(1))
        .skip(rect.y)
        .take(rect.height)
        .map(move |row| &row[rect.x..rect.x + rect.width])
}

/// Returns `pixels` on a screen of this size: cut off where the screen is smaller, or black where it is
/// larger.
pub(crate) fn fitted(pixels: &Pixels, width: usize, height: usize) -> Cow<'_, Pixels> {
    if (pixels.width, pixels.height) == (width, height) {
        return Cow::Borrowed(pixels);
    }
    let mut colours = vec![0; width * height];
    let rows = pixels.colours.chunks_exact(pixels.width.max(1));
    for (to, from) in colours.chunks_exact_mut(width.max(1)).zip(rows) {
        let common = width.min(pixels.width);
        to[..common].copy_from_slice(&from[..common]);
    }
    Cow::Owned(Pixels { width, height, colours })
}

/// The screen that a client shows.
#[derive(Debug)]
pub(crate) struct View {
    pixels: Pixels,
    /// For each tile, whether the client must get it even if it has not changed.
    stale: Vec<bool>,
    tiles_wide: usize,
}

impl View {
    /// Makes the view of a client whose screen is unknown.
    pub(crate) fn new(width: usize, height: usize) -> View {
        let tiles_wide = width.div_ceil(TILE);
        View {
            pixels: Pixels { width, height, colours: vec![0; width * height] },
            stale: vec![true; tiles_wide * height.div_ceil(TILE)],
            tiles_wide,
        }
    }

    /// Returns its width and height.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.pixels.width, self.pixels.height)
    }

    /// Notes that the client wants all of `area` again.
    pub(crate) fn spoil(&mut self, area: Rect) {
        let (columns, rows) = area.clipped(self.pixels.width, self.pixels.height).tiles();
        for row in rows {
            self.stale[row * self.tiles_wide..][columns.clone()].fill(true);
        }
    }

    /// Copies from `screen`, which has this view's size, the tiles in `area` that differ, and returns the
    /// rectangles of these tiles. The rectangles do not overlap.
    pub(crate) fn update(&mut self, screen: &Pixels, area: Rect) -> Vec<Rect> {
        let (columns, tile_rows) = area.clipped(self.pixels.width, self.pixels.height).tiles();
        let mut changes: Vec<Rect> = Vec::new();
        // The rectangles of the tile row above, which grow downwards if the same tiles have changed in this
        // row.
        let mut above = 0..0;
        for row in tile_rows {
            let mut runs = Vec::new();
            for column in columns.clone() {
                let tile = self.tile(column, row);
                if !self.take(screen, tile, row * self.tiles_wide + column) {
                    continue;
                }
                match runs.last_mut() {
                    Some(run @ Rect { .. }) if run.x + run.width == tile.x => {
                        run.width += tile.width;
                    }
                    _ => runs.push(tile),
                }
            }
            let same = runs.len() == above.len()
                && changes[above.clone()].iter().zip(&runs).all(|(rect, run)| {
                    (rect.x, rect.width, rect.y + rect.height) == (run.x, run.width, run.y)
                });
            if same {
                for (rect, run) in changes[above.clone()].iter_mut().zip(&runs) {
                    rect.height += run.height;
                }
            } else {
                above = changes.len()..changes.len() + runs.len();
                changes.append(&mut runs);
            }
        }
        if changes.len() > MOST_RECTANGLES
            && let Some(all) = changes.iter().copied().reduce(Rect::union)
        {
            // The client already has the pixels between the rectangles.
            return vec![all];
        }
        changes
    }

    fn tile(&self, column: usize, row: usize) -> Rect {
        Rect { x: column * TILE, y: row * TILE, width: TILE, height: TILE }
            .clipped(self.pixels.width, self.pixels.height)
    }

    /// Copies a tile, and returns whether the client must get it.
    fn take(&mut self, screen: &Pixels, tile: Rect, index: usize) -> bool {
        let width = self.pixels.width;
        let mut changed = std::mem::take(&mut self.stale[index]);
        for y in tile.y..tile.y + tile.height {
            let place = y * width + tile.x..y * width + tile.x + tile.width;
            let (old, new) = (&mut self.pixels.colours[place.clone()], &screen.colours[place]);
            if old != new {
                old.copy_from_slice(new);
                changed = true;
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn screen(width: usize, height: usize) -> Pixels {
        Pixels { width, height, colours: vec![0; width * height] }
    }

    #[test]
    fn the_whole_screen_is_sent_once() {
        let (screen, all) = (screen(100, 50), Rect::all(100, 50));
        let mut view = View::new(100, 50);
        assert_eq!(view.update(&screen, all), [all]);
        assert_eq!(view.update(&screen, all), []);
    }

    #[test]
    fn an_area_is_sent_again_on_request() {
        let (screen, all) = (screen(100, 50), Rect::all(100, 50));
        let mut view = View::new(100, 50);
        view.update(&screen, all);
        view.spoil(Rect { x: 20, y: 20, width: 1, height: 1 });
        assert_eq!(view.update(&screen, all), [Rect { x: 16, y: 16, width: 16, height: 16 }]);
        view.spoil(Rect { x: 99, y: 49, width: 1000, height: 1000 });
        assert_eq!(view.update(&screen, all), [Rect { x: 96, y: 48, width: 4, height: 2 }]);
        view.spoil(Rect { x: 1000, y: 0, width: 10, height: 10 });
        assert_eq!(view.update(&screen, all), []);
    }

    #[test]
    fn changes_outside_of_the_requested_area_wait() {
        let mut screen = screen(64, 64);
        let mut view = View::new(64, 64);
        view.update(&screen, Rect::all(64, 64));
        screen.colours[0] = 1;
        screen.colours[63] = 1;
        let left = Rect { x: 0, y: 0, width: 16, height: 64 };
        assert_eq!(view.update(&screen, left), [Rect { x: 0, y: 0, width: 16, height: 16 }]);
        let rest = view.update(&screen, Rect::all(64, 64));
        assert_eq!(rest, [Rect { x: 48, y: 0, width: 16, height: 16 }]);
    }

    #[test]
    fn a_screen_of_another_size_is_cut_off_or_filled_with_black() {
        let picture = Pixels { width: 2, height: 2, colours: vec![1, 2, 3, 4] };
        assert_eq!(fitted(&picture, 3, 1).colours, [1, 2, 0]);
        assert_eq!(fitted(&picture, 1, 3).colours, [1, 3, 0]);
        assert!(matches!(fitted(&picture, 2, 2), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn a_client_that_applies_all_updates_has_the_screen(
            width in 1usize..70,
            height in 1usize..70,
            dots in proptest::collection::vec((0usize..5000, 1u32..4), 0..40),
        ) {
            let mut screen = screen(width, height);
            let mut view = View::new(width, height);
            let mut client = screen.clone();
            view.update(&screen, Rect::all(width, height));
            for steps in dots.chunks(5) {
                for (place, colour) in steps {
                    let count = screen.colours.len();
                    screen.colours[place % count] = *colour;
                }
                for rect in view.update(&screen, Rect::all(width, height)) {
                    for y in rect.y..rect.y + rect.height {
                        let place = y * width + rect.x..y * width + rect.x + rect.width;
                        client.colours[place.clone()].copy_from_slice(&screen.colours[place]);
                    }
                }
                prop_assert_eq!(&client, &screen);
            }
        }
    }
}
