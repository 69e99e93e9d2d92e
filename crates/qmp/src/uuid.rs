//! The identity of a machine, as text (RFC 4122, 3).

/// Returns the text of `uuid`, or of zeros if there is none.
pub(crate) fn text(uuid: Option<[u8; 16]>) -> String {
    let hex = uuid.unwrap_or_default().map(|byte| format!("{byte:02x}")).concat();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn groups_have_hyphens_between() {
        let uuid = std::array::from_fn(|index| index as u8);
        assert_eq!(super::text(Some(uuid)), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(super::text(None), "00000000-0000-0000-0000-000000000000");
    }
}
