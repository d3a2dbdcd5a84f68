//! Numbers in decimal digits, as files and names of /proc have them.

/// The value of a digit.
pub(crate) fn value(digit: u8) -> Option<u8> {
    Some(digit.wrapping_sub(b'0')).filter(|value| *value < 10)
}

/// A number in decimal digits.
pub(crate) fn number(text: &[u8]) -> Option<i32> {
    let add = |sum: i32, digit: &u8| sum.checked_mul(10)?.checked_add(value(*digit)?.into());
    if text.is_empty() { None } else { text.iter().try_fold(0, add) }
}

/// The decimal digits of a number.
pub(crate) fn decimal(mut rest: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut used = 0usize;
    for digit in digits.iter_mut().rev() {
        *digit = b'0'.wrapping_add((rest % 10) as u8);
        rest /= 10;
        used = used.wrapping_add(1);
        if rest == 0 {
            break;
        }
    }
    digits.get(10usize.wrapping_sub(used)..).unwrap_or_default()
}
