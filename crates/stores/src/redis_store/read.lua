local record, instead = load_record(KEYS[1], KEYS[2])
return instead or answer('read', record)
