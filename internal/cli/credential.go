package cli

// UpdateCredential leaves a server's address in its data folder, with the key where one was just made, else with the key that is there already.
func UpdateCredential(dir, url, key string) error {
	if key == "" {
		old, err := readCredential(dir)
		if err != nil {
			return err
		}
		key = old.Key
	}
	return WriteCredential(dir, Credential{URL: url, Key: key})
}
