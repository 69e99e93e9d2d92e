//! DPPS and DPPD.

use super::Context;
use super::format::{F32, F64, Float};

impl Context {
    /// For each pair of vectors, the dot product of the elements that bits 4 to 7 of `immediate` select, in the elements
    /// that bits 0 to 3 select (DPPS). The others are zero. Each step is made for all vectors.
    pub fn dot_f32<const N: usize>(
        &mut self,
        vectors: [([F32; 4], [F32; 4]); N],
        immediate: u8,
    ) -> [[F32; 4]; N] {
        let products = vectors.map(|(a, b)| self.products(a, b, immediate));
        self.next_step();
        let sums = products.map(|[p0, p1, p2, p3]| (self.add(p0, p1), self.add(p2, p3)));
        self.next_step();
        sums.map(|(low, high)| spread(self.add(low, high), immediate))
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
