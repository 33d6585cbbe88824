//! Percent-encoding in URLs.

/// Resolves the escapes; the error says what is wrong with them.
pub(crate) fn decoded(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("a '%' in it is not followed by two hexadecimal digits");
        };
        // Two hexadecimal digits are a byte.
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| "what is percent-encoded in it is not UTF-8")
}

/// For a form or a query.
#[cfg(feature = "azure_blob")]
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().fold(String::new(), |mut text, byte| {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_resolved() {
        assert_eq!(decoded("a%20b%C3%a4"), Ok("a bä".to_owned()));
        for wrong in ["%", "%4", "%4x", "%+1", "%ff"] {
            assert!(decoded(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    #[cfg(feature = "azure_blob")]
    fn forms_are_encoded() {
        assert_eq!(encoded("a b/c~ü!="), "a%20b%2Fc~%C3%BC%21%3D");
    }
}
