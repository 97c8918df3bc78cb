//! The token that the web page's requests must have, if one is configured.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Fewest and most bytes of a token.
const SHORTEST: usize = 16;
const LONGEST: usize = 1024;

/// A secret, which is not printed.
pub(super) struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the file at `path`, which only its owner and group may read; white space at its end does not count.
    ///
    /// # Errors
    /// The file cannot be read, other users can read it, or it holds no token.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.mode() & 0o007 != 0 {
            return Err(io::Error::other("every user of the host has access to it: run chmod o= on it"));
        }
        let mut text = String::new();
        file.take(LONGEST as u64 + 2).read_to_string(&mut text)?;
        Self::of(text.trim_end()).ok_or_else(|| {
            io::Error::other(format!(
                "it must hold {SHORTEST} to {LONGEST} letters, digits and signs without spaces, as `openssl rand -hex 32` prints"
            ))
        })
    }

    fn of(text: &str) -> Option<Self> {
        let fits = (SHORTEST..=LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.as_bytes().to_vec()))
    }

    /// Whether `text` is this token, in a time that depends on the length of `text` alone.
    pub(super) fn is(&self, text: &[u8]) -> bool {
        let differs = (0..text.len()).fold(self.0.len() ^ text.len(), |differs, index| {
            // Around, so that a longer text is compared in the same way.
            let own = self.0[index % self.0.len()];
            black_box(differs | usize::from(own ^ text[index]))
        });
        black_box(differs) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_equal_to_itself_alone() {
        let token = Token::of("0123456789abcdef").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        let others: [&[u8]; 6] = [
            b"",
            b"0123456789abcde",
            b"0123456789abcdeF",
            b"x123456789abcdef",
            b"0123456789abcdef0",
            b"0123456789abcdef0123456789abcdef",
        ];
        assert!(others.iter().all(|other| !token.is(other)));
        assert!(
            [String::new(), "a".repeat(15), "a".repeat(1025), format!("{} ", "a".repeat(16))]
                .iter()
                .all(|text| Token::of(text).is_none())
        );
    }

    #[test]
    fn a_file_that_every_user_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let readable_by = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        readable_by(0o604);
        assert!(Token::read(&path).unwrap_err().to_string().contains("every user of the host"));
        readable_by(0o640);
        assert!(Token::read(&path).unwrap().is(b"0123456789abcdef"));
        std::fs::write(&path, "short").unwrap();
        assert!(Token::read(&path).unwrap_err().to_string().starts_with("it must hold 16 to 1024"));
    }
}
