//! The checksum of a manifest: its last field, of all bytes before it.
//!
//! A manifest lists the files with their checksums. Its own contents, such as a name or a version,
//! need a checksum too: otherwise damage on the disk would be believed.

/// The bytes between the summed bytes and the sum, in the form of `json.dumps(..., indent=1)`.
const BEFORE: &str = ",\n \"checksum\": \"crc32c:";
const AFTER: &str = "\"\n}";
const DIGITS: usize = 8;

/// Return a manifest with its checksum.
///
/// # Errors
/// It is no JSON object of several lines, such as `json.dumps(..., indent=1)` makes.
pub fn seal(manifest: &str) -> Result<String, String> {
    let Some(body) = manifest.strip_suffix("\n}") else {
        return Err("expected a JSON object that ends with a line of its own".to_owned());
    };
    let sum = crc32c::crc32c(body.as_bytes());
    Ok(format!("{body}{BEFORE}{sum:08x}{AFTER}"))
}

/// Return whether a manifest has a checksum, which is right; false if it has none.
///
/// # Errors
/// It has another one.
pub fn is_sealed(manifest: &[u8]) -> Result<bool, String> {
    let tail_len = BEFORE.len() + DIGITS + AFTER.len();
    let found = manifest
        .windows(BEFORE.len())
        .rposition(|window| window == BEFORE.as_bytes());
    let Some(at) = found else {
        return Ok(false);
    };
    let (body, tail) = manifest.split_at(at);
    let expected = format!("{BEFORE}{:08x}{AFTER}", crc32c::crc32c(body));
    if tail == expected.as_bytes() {
        return Ok(true);
    }
    let said = String::from_utf8_lossy(&tail[BEFORE.len()..tail.len().min(tail_len)]).into_owned();
    Err(format!(
        "its own checksum is {:?}, expected {:08x}: it was changed or is damaged",
        said.trim_end_matches(AFTER),
        crc32c::crc32c(body)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "{\n \"format\": 3,\n \"replicas\": []\n}";

    #[test]
    fn a_sealed_manifest_is_json_and_each_flipped_bit_is_told() {
        let sealed = seal(MANIFEST).unwrap();
        let value: serde_json::Value = serde_json::from_str(&sealed).unwrap();
        assert_eq!(value["format"], 3);
        assert_eq!(is_sealed(sealed.as_bytes()), Ok(true));
        for bit in 0..8 * sealed.len() {
            let mut bytes = sealed.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // If the field's name is damaged, the checksum is missing, and the format requires one.
            assert_ne!(is_sealed(&bytes), Ok(true), "bit {bit}");
        }
    }

    #[test]
    fn one_of_an_earlier_version_has_none() {
        assert_eq!(is_sealed(MANIFEST.as_bytes()), Ok(false));
        assert!(seal("{}").is_err());
    }
}
