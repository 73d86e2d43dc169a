//! The one rule by which text is a number; `docs/data.md` has it in words.
//!
//! Blanks (space, tab) around a number are not part of it. Nothing else is forgiven: no underscore,
//! no digit of another script, no hexadecimal, no zero byte.

/// The kind of a field's text. The kind of a column is the widest of its fields; wider kinds come
/// later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextKind {
    /// A whole number that `i64` holds.
    Whole,
    /// A whole number that `i64` does not hold: as `f64` several ids were one.
    LargeWhole,
    /// A real number that `f64` holds, `inf` or `nan`.
    Real,
    /// Anything else.
    Text,
}

/// Tells what a text is, by the narrowest kind.
#[must_use]
pub fn kind_of(text: &[u8]) -> TextKind {
    if whole(text).is_some() {
        TextKind::Whole
    } else if real(text).is_none() {
        TextKind::Text
    } else if is_digits(unsigned(trimmed(text))) {
        TextKind::LargeWhole
    } else {
        TextKind::Real
    }
}

/// Reads a whole number: an optional sign and decimal digits.
#[must_use]
pub fn whole(text: &[u8]) -> Option<i64> {
    let text = trimmed(text);
    let digits = unsigned(text);
    if !is_digits(digits) {
        return None;
    }
    let is_negative = text[0] == b'-';
    digits.iter().try_fold(0_i64, |number, &byte| {
        let digit = i64::from(byte - b'0');
        let tens = number.checked_mul(10)?;
        if is_negative {
            tens.checked_sub(digit)
        } else {
            tens.checked_add(digit)
        }
    })
}

/// Reads a real number: an optional sign, digits with at most one point among or beside them, and
/// an optional exponent; or `inf`, `infinity` or `nan`, in any case. The nearest `f64` is returned;
/// a number that is too large for it is none.
#[must_use]
pub fn real(text: &[u8]) -> Option<f64> {
    let text = trimmed(text);
    let rest = unsigned(text);
    if rest.first()?.is_ascii_alphabetic() {
        let is_known = [&b"inf"[..], b"infinity", b"nan"]
            .iter()
            .any(|word| rest.eq_ignore_ascii_case(word));
        return is_known.then(|| parsed(text)).flatten();
    }
    let is_plain = rest
        .iter()
        .all(|byte| byte.is_ascii_digit() || b".eE+-".contains(byte));
    if !is_plain {
        return None;
    }
    parsed(text).filter(|number| number.is_finite())
}

/// Rust's grammar of `f64` is the rule once the letters are known.
fn parsed(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn trimmed(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

fn unsigned(text: &[u8]) -> &[u8] {
    match text {
        [b'+' | b'-', rest @ ..] => rest,
        _ => text,
    }
}

fn is_digits(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_one_strict_rule() {
        for (text, expected) in [
            ("12", Some(12)),
            (" +12\t", Some(12)),
            ("-0", Some(0)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("1_2", None),
            ("１２", None),
            ("12\0", None),
            ("\u{a0}12", None),
            ("12\u{b}", None),
            ("0x1A", None),
            ("+ 1", None),
            ("--1", None),
            ("1.0", None),
            ("+", None),
            ("", None),
        ] {
            assert_eq!(whole(text.as_bytes()), expected, "{text:?}");
        }
        for (text, expected) in [
            ("1003.858", Some(1003.858)),
            ("1.", Some(1.0)),
            (".5", Some(0.5)),
            ("-1E+5", Some(-1e5)),
            ("1e-400", Some(0.0)),
            ("iNf", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("1e400", None),
            ("1_0.5", None),
            ("0x1p3", None),
            ("nan(1)", None),
            ("1e", None),
            (".", None),
            ("1,5", None),
            ("1 2", None),
            ("e5", None),
            ("", None),
        ] {
            assert_eq!(real(text.as_bytes()), expected, "{text:?}");
        }
        assert!(real(b"-NaN").is_some_and(f64::is_nan));
    }

    #[test]
    fn the_narrowest_kind_is_told_and_ids_too_large_are_a_kind_of_their_own() {
        for (text, expected) in [
            ("7", TextKind::Whole),
            ("7.0", TextKind::Real),
            ("99999999999999999999", TextKind::LargeWhole),
            ("1e19", TextKind::Real),
            ("1_2", TextKind::Text),
            ("  ", TextKind::Text),
        ] {
            assert_eq!(kind_of(text.as_bytes()), expected, "{text:?}");
        }
    }
}
