"""One noun a module: parse what was asked, load it or act, render."""
