// Package clients owns the tests with MCP clients that others wrote: the TypeScript SDKs and the Inspector, pinned in package.json.
//
// They run against a server in this process whose sandboxes are folders of this machine, and against a built binary where BERTH_BIN names one.
// make clients must have installed the packages here; without it, and without node, the tests are skipped outside CI.
package clients
