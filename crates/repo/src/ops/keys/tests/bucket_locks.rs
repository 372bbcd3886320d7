//! Locks of a bucket, beside somebody who has no key.

use super::*;

type NewLocks = (ObjectLock, fn(&ObjectPath) -> bool);

/// A store that claims to lock, and lets the memory behind it be tampered with.
struct Vault {
    memory: MemStore,
    new: Mutex<Option<NewLocks>>,
    /// Objects that somebody has hidden.
    hidden: Vec<ObjectPath>,
}

impl Vault {
    fn new(memory: MemStore) -> Self {
        Self { memory, new: Mutex::new(None), hidden: Vec::new() }
    }
}

impl Store for Vault {
    forward_store!(
        self => self.memory;
        location, put, create_if_absent, read_exact_at, head, list, list_folders, delete, now, free_bytes
    );

    fn versioned(&self) -> Option<&dyn Versioned> {
        Some(self)
    }
}

impl Versioned for Vault {
    fn protection(&self) -> Result<locks::VersionProtection, StoreError> {
        Ok(locks::VersionProtection {
            versions: Some(true),
            suspended: false,
            locks: Some(true),
            locks_by_default: false,
        })
    }

    fn lock_new(&self, lock: ObjectLock, lasts: fn(&ObjectPath) -> bool) {
        *self.new.lock().unwrap() = Some((lock, lasts));
    }

    fn locked_until(&self, path: &ObjectPath) -> Result<Option<SystemTime>, StoreError> {
        let new = self.new.lock().unwrap().filter(|(_, lasts)| lasts(path));
        new.map(|(lock, _)| self.now().map(|now| now + lock.period())).transpose()
    }

    fn extend(&self, _: &str, _: &Extend<'_>) -> Result<Extended, StoreError> {
        Ok(Extended::default())
    }

    fn delete_versions(&self, paths: &[ObjectPath]) -> Result<Vec<StillLocked>, StoreError> {
        self.memory.delete(paths).map(|()| Vec::new())
    }

    fn noncurrent_version(&self, _: &ObjectPath) -> Result<Option<NoncurrentVersion>, StoreError> {
        Ok(None)
    }

    fn folders_ever(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.memory.list_folders(prefix)
    }

    fn noncurrent_versions(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(ObjectPath, NoncurrentVersion),
    ) -> Result<(), StoreError> {
        let below = self.hidden.iter().filter(|path| path.as_str().starts_with(prefix));
        below.for_each(|path| {
            each(path.clone(), NoncurrentVersion { is_hidden: true, since: SystemTime::UNIX_EPOCH })
        });
        Ok(())
    }

    fn overwritten(&self, _: &mut dyn FnMut(Overwritten)) -> Result<(), StoreError> {
        Ok(())
    }
}

#[test]
fn nobody_who_has_no_key_makes_locks_shorter() {
    let lock = ObjectLock::new(LockMode::Compliance, Duration::from_secs(30 * 86_400)).unwrap();
    let memory = MemStore::new();
    let password = password("x");
    let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
    let made = Repo::init_locked(Arc::new(Vault::new(memory.clone())), &protection, Some(lock)).unwrap();
    assert_eq!(made.info().object_lock, Some(lock));

    // Opening the repository locks what lasts, and nothing else.
    let vault = Arc::new(Vault::new(memory.clone()));
    let opened = Repo::open(Arc::clone(&vault) as Arc<dyn Store>, Some(&password)).unwrap();
    opened.require(Act::Backup, "a backup").unwrap();
    let (found, lasts) = vault.new.lock().unwrap().unwrap();
    assert_eq!(found, lock);
    for (name, is_lasting) in [
        ("holdfast.json", true),
        ("keys/0123456789abcdef", true),
        ("removals/0000000001", true),
        ("sources/db1/physical/packs/0000000001-000000", true),
        ("sources/db1/physical/outcomes/0000000001", true),
        ("sources/runs/physical/packs/0000000001-000000", true),
        ("sources/db1/physical/runs/0000000001/000000", false),
        ("sources/db1/binlog/segments/0000000001-000000", false),
        ("sources/db1/physical/checks/0000000001", false),
        ("probe/x", false),
        (".tmp/x", false),
    ] {
        assert_eq!(lasts(&object_path(name)), is_lasting, "{name}");
    }

    // A copy in a store without locks can be read, but not written.
    let copy = Repo::open(Arc::new(memory.clone()), Some(&password)).unwrap();
    copy.require(Act::Read, "a restore").unwrap();
    assert!(matches!(copy.require(Act::Backup, "a backup"), Err(RepoError::NoLocks { .. })));
    let plain = Repo::init_locked(Arc::new(MemStore::new()), &protection, Some(lock));
    assert!(matches!(plain, Err(KeyError::NoLocks { .. })));

    let told = "\"object_lock\":{\"mode\":\"compliance\",\"period_s\":2592000}";
    for shorter in [
        "\"object_lock\":{\"mode\":\"compliance\",\"period_s\":1}",
        "\"object_lock\":{\"mode\":\"governance\",\"period_s\":2592000}",
        "\"object_lock\":{\"mode\":\"compliance\",\"period_s\":0}",
        "\"object_lock\":{\"mode\":\"compliance\",\"period_s\":18446744073709551615}",
        "\"object_lock\":{\"mode\":\"none\",\"period_s\":2592000}",
        "\"object_lock\":null",
    ] {
        edit(&memory, &info_path(), told, shorter);
        let refused = Repo::open(Arc::new(memory.clone()), Some(&password)).map(|_| ());
        assert!(matches!(refused, Err(KeyError::Damaged { .. })), "{shorter}: {refused:?}");
        edit(&memory, &info_path(), shorter, told);
    }
}

/// A removed operator hides the record of a signer, and vouches for that signer by another name.
#[test]
fn a_repair_gives_up_nothing_of_a_signer_whose_record_is_hidden() {
    let (memory, root) = new_repo();
    let log = log("db1");
    let second = added(&memory, &root, &key(Role::Operator, &[]), "second");
    let writer = added(&memory, &root, &key(Role::Writer, &[]), "writer");
    remove(&root, second.keys().key_id()).unwrap();
    backup(&writer, &log).unwrap();
    let path = signer_path(writer.keys().key_id());
    memory.delete(&[path.clone(), key_path(writer.keys())]).unwrap();
    let other = OwnKeys::generate().unwrap().signer(Role::Writer, Vec::new());
    let signer = Signer { public: writer.keys().signing_public(), ..other };
    let other_path = signer_path(signer.key_id);
    let voucher = trust::Voucher { format: FORMAT, signer, label: String::new(), created_at: String::new() };
    let record = signed::sign(second.keys(), signed::Sort::Signer, &voucher);
    memory.create_if_absent(&other_path, &record).unwrap();

    let vault = Vault { hidden: vec![path.clone()], ..Vault::new(memory) };
    let again = Arc::new(Repo::open(Arc::new(vault), Some(&password("root"))).unwrap());
    assert!(matches!(refused(&again, &log).1, Damage::SignerRemoved { .. }));
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let refused = repair(&again, &log, &CheckOptions::default(), &mut |_| true, &options).unwrap_err();
    assert!(refused.to_string().starts_with(&format!("{path} was deleted")), "{refused}");
}
