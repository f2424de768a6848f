"""Questions of business formats, edge cases and safety: files of the user's or shipped ones, and generators for any number of them."""
