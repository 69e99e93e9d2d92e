//! DPPS and DPPD.

use super::Context;
use super::format::{F32, F64, Float};

impl Context {
    /// The dot product of the elements that bits 4 to 7 of `immediate` select, in the elements
    /// that bits 0 to 3 select (DPPS). The others are zero.
    pub fn dot_f32(&mut self, a: [F32; 4], b: [F32; 4], immediate: u8) -> [F32; 4] {
        let [p0, p1, p2, p3] = self.products(a, b, immediate);
        self.next_step();
        let (low, high) = (self.add(p0, p1), self.add(p2, p3));
        self.next_step();
        let sum = self.add(low, high);
        spread(sum, immediate)
    }

    /// The dot product of the elements that bits 4 and 5 of `immediate` select, in the elements
    /// that bits 0 and 1 select (DPPD). The others are zero.
    pub fn dot_f64(&mut self, a: [F64; 2], b: [F64; 2], immediate: u8) -> [F64; 2] {
        let [p0, p1] = self.products(a, b, immediate);
        self.next_step();
        let sum = self.add(p0, p1);
        spread(sum, immediate)
    }

    /// The products of the elements that the high half of `immediate` selects; the others are zero
    /// and raise nothing.
    fn products<F: Float, const N: usize>(
        &mut self,
        a: [F; N],
        b: [F; N],
        immediate: u8,
    ) -> [F; N] {
        std::array::from_fn(|i| {
            if immediate >> (4 + i) & 1 != 0 { self.mul(a[i], b[i]) } else { F::zero(false) }
        })
    }
}

/// `value` in the elements that the low half of `immediate` selects.
fn spread<F: Float, const N: usize>(value: F, immediate: u8) -> [F; N] {
    std::array::from_fn(|i| if immediate >> i & 1 != 0 { value } else { F::zero(false) })
}
