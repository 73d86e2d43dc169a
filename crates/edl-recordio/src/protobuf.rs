//! The fields of a protobuf message, as they are encoded.

/// A field of a message.
pub(crate) enum Field<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Delimited(&'a [u8]),
}

/// The fields of a message that are still to be read.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = varint(&mut self.0)?;
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut self.0)?),
            2 => {
                let length = varint(&mut self.0)?;
                let (bytes, rest) = usize::try_from(length)
                    .ok()
                    .and_then(|length| self.0.split_at_checked(length))
                    .ok_or("a message is cut off")?;
                self.0 = rest;
                Field::Delimited(bytes)
            }
            5 => {
                let (bytes, rest) = self.0.split_first_chunk().ok_or("a number is cut off")?;
                self.0 = rest;
                Field::Fixed32(*bytes)
            }
            wire => return Err(format!("a field has the wire type {wire}")),
        };
        Ok(Some((tag >> 3, field)))
    }
}

#[inline]
pub(crate) fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    if let Some((&byte, rest)) = bytes.split_first()
        && byte < 0x80
    {
        *bytes = rest;
        return Ok(u64::from(byte));
    }
    long_varint(bytes)
}

fn long_varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for (number, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * number);
        if byte < 0x80 {
            *bytes = &bytes[number + 1..];
            return Ok(value);
        }
    }
    Err("a number is cut off, or has more than 64 bits".to_owned())
}
