//! Atomic writes, and stores through mappings beside them.

use super::*;

impl World {
    /// Writes in an atomic write; whether it succeeded.
    pub(super) fn write_in_section(&mut self, by: Actor, page: u64, tag: u64) -> bool {
        if !self.sections.contains_key(&by) {
            return false;
        }
        let (offset, bytes) = (page * 4096, tag::atomic_contents(tag, 4096));
        let write = Call::on(What::WriteAt, SECTION).number(offset).bytes(bytes.clone());
        let reply = self.on(by, X, "", &write);
        self.note(|| format!("    {reply}"));
        if by.user != ROOT {
            self.known[by.user].insert(tag);
        }
        if reply.is_ok() {
            self.sections.get_mut(&by).expect("it is open").writes.push((offset, bytes));
        }
        reply.is_ok()
    }

    /// The store may be lost (docs/SECURITY.md), as the kernel copies the written data over it. But
    /// no other process sees uncommitted data.
    pub(super) fn store_under(
        &mut self,
        by: Actor,
        offset: u64,
        tag: u64,
        section: Actor,
        written: u64,
    ) -> Outcome {
        if by == section || !self.mapped.contains(&by) || !self.sections.contains_key(&section) {
            return Ok(());
        }
        let store = Call::on(What::Store, MAPPED).numbers([offset, 1, 0]).bytes(tag::text(tag).into_bytes());
        let reply = self.on_both(by, &store);
        self.same(by, &store, &reply)?;
        if by.user != ROOT {
            self.known[by.user].insert(tag);
        }
        let wrote = self.write_in_section(section, offset / 4096, written);
        // Dirty pages are written to the daemon.
        let sync = Call::on(What::Store, MAPPED).numbers([0, 0, 0]);
        let reply = self.on_both(by, &sync);
        self.same(by, &sync, &reply)?;
        if !wrote {
            // The kernel has copied the refused data to the page, which the store made dirty
            // (docs/SECURITY.md).
            self.adjust();
            return Ok(());
        }
        let ours = tree::read(Path::new(&self.roots[0])).unwrap();
        if let Some(path) = tree::path_with(&ours, written) {
            return violation(format!(
                "what {section} has written atomically, and not committed, is seen by all in {path}"
            ));
        }
        self.adjust();
        Ok(())
    }

    pub(super) fn end_section(&mut self, by: Actor, commit: bool) -> Outcome {
        let Some(section) = self.sections.remove(&by) else { return Ok(()) };
        let command = if commit { crate::COMMIT_ATOMIC } else { crate::ABORT_ATOMIC };
        let reply = self.ioctl(by, SECTION, command, &[]);
        self.note(|| format!("    {reply}"));
        if commit && reply.is_ok() {
            for (offset, bytes) in &section.writes {
                let write = Call::on(What::WriteAt, SECTION).number(*offset).bytes(bytes.clone());
                let again = self.on(by, K, "", &write);
                if !again.is_ok() {
                    return violation(format!(
                        "{by} has committed an atomic write of {}, which the kernel's ext4 refuses: {again}",
                        section.path
                    ));
                }
            }
        }
        self.on_both(by, &Call::on(What::Close, SECTION));
        self.compare("after an atomic write")
    }
}
