//! A table's name as that of a folder.

/// Return the folder of a table: its name, where letters, digits, `.`, `-` and `_` stay and
/// all other bytes become `%XX`. A first `.` or `_` does too: readers skip such folders.
pub fn folder_of(table: &str) -> String {
    let mut folder = String::with_capacity(table.len());
    for (i, byte) in table.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || byte == b'-';
        if plain || (i > 0 && matches!(byte, b'.' | b'_')) {
            folder.push(char::from(byte));
        } else {
            folder.push_str(&format!("%{byte:02X}"));
        }
    }
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_that_readers_look_into() {
        assert_eq!(folder_of("user_id.1"), "user_id.1");
        assert_eq!(folder_of("../a/b"), "%2E.%2Fa%2Fb");
        assert_eq!(folder_of("_tmp é%"), "%5Ftmp%20%C3%A9%25");
    }
}
