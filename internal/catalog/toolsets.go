package catalog

// Toolset is a group of tools that an address can ask for. The operations say themselves which one they are of.
type Toolset struct {
	Name    string
	Doc     string // what its tools are for, in a sentence
	Missing string // said where a deployment has none of its tools
}

// Toolsets are the groups in the order in which they are shown.
func Toolsets() []Toolset {
	return []Toolset{
		{"sandboxes", "Isolated Linux machines with a disk, a network and a user with sudo.", "no pool of this deployment runs sandboxes"},
		{"files", "Files and folders in a sandbox.", "no pool of this deployment runs sandboxes"},
		{"processes", "Commands and background processes in a sandbox.", "no pool of this deployment runs sandboxes"},
		{"code", "Notebook-style sessions that run code in a sandbox.", "code sessions are not part of this version; run_command runs scripts"},
		{"templates", "What sandboxes are made from: templates, images, snapshots and registries.", "templates and images are not part of this version; create_sandbox uses base"},
		{"volumes", "Disks that outlive sandboxes.", "no pool of this deployment keeps volumes; a stopped sandbox keeps its disk"},
		{"network", "Previews, rules and addresses of sandboxes.", "network tools are not part of this version; create_sandbox chooses with network.internet"},
		{"capacity", "Pools, GPUs and reservations.", "reservations are not part of this version"},
		{"instances", "Virtual machines.", "instances are not part of this version; create_sandbox gives an isolated machine"},
		{"fleet", "Nodes and what runs on them.", "nodes are for the people who run this deployment"},
		{"account", "Who the credential is, limits and what this deployment can do.", "the account tools are off"},
		{"jobs", "Scheduled jobs.", "scheduled jobs are not part of this version"},
		{"desktop", "A desktop in a sandbox.", "desktops are not part of this version"},
		{"docs", "This deployment's documentation.", "the documentation is on the server's web pages"},
	}
}

// firstSession are the tools of /mcp: what an agent needs from its first call to a finished task. The others are a toolset away.
var firstSession = []string{
	"create_sandbox", "list_sandboxes", "get_sandbox", "update_sandbox", "extend_sandbox", "start_sandbox", "stop_sandbox", "delete_sandbox",
	"pause_sandbox", "resume_sandbox", "fork_sandbox", "snapshot_sandbox",
	"run_command", "start_process", "list_processes", "get_process", "read_process_output", "write_process_input", "signal_process",
	"read_file", "write_file", "edit_file", "list_files", "move_file", "remove_file",
	"create_preview", "list_images", "get_account", "get_limits", "search_docs", "read_doc",
	"get_confirmation",
}

// products say where a compact list has an operation whose name alone would not: its tool is its toolset, its action the verb of its name, after the
// plural where that is not the toolset's name.
var products = map[string]string{
	"sandboxes.exec": "exec", "code.run": "run",
}

// The operations that the profile for ChatGPT leaves out: what no request of a conversation needs, and the one way to read a kept secret back.
var notInChat = []string{"audit.list", "referrals.*", "account.sso", "usage.compare", "jobSecrets.reveal"}

// What the same profile takes out of results: names and internal ids of the account, and whatever is a lasting credential.
var (
	concealed = map[string][]string{
		"account.get": {
			"organizationId", "organizationName", "workspaceId", "workspaceName", "principalId", "personId", "agentId", "appId", "keyId", "keyName",
		},
	}
	credentials = []string{
		"secret", "token", "password", "passphrase", "privateKey", "apiKey", "accessKey", "secretKey", "refreshToken", "accessToken", "authorization", "credential", "credentials",
	}
)
