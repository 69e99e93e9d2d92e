//! The upper bound of TCP's bandwidth, whatever the network (6.14, 6.15).

/// Returns the bytes of data in a packet of TCP over IPv4 without options: MTU less the headers (6.15).
pub fn segment(mtu: f64) -> f64 {
    mtu - 20.0 - 20.0
}

/// Returns the bound of Mathis and others (1997) in bytes a second, for round trips of `round_trip` seconds
/// and the share `loss` of packets lost. The paper prints it with the square of the loss (6.14); the
/// original, like this function, has the square root.
pub fn bound(mtu: f64, round_trip: f64, loss: f64) -> f64 {
    0.7 * segment(mtu) / (round_trip * loss.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumbo_frames_carry_six_times_as_much() {
        let gain = bound(9000.0, 1e-3, 1e-4) / bound(1500.0, 1e-3, 1e-4);
        assert!((gain - 6.0).abs() < 0.2, "{gain}");
    }

    #[test]
    fn a_known_value() {
        // 0.7 * 1460 / (0.1 * 0.1).
        assert!((bound(1500.0, 0.1, 0.01) - 102_200.0).abs() < 1e-6);
    }
}
