//! Random drivers of virtio devices; `make fuzz-virtio` looks for worse ones.

#[path = "support/abuse.rs"]
mod abuse;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_driver_is_handled_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        abuse::use_virtio(&bytes);
    }
}
