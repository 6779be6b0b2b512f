// SPDX-License-Identifier: Apache-2.0
/* The connections of a CUDA process to the MPS server: one for the process and one for each context. */
#include "inside.h"
#include "share.h"
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { packet_max = 64 << 10 };

static void control_address(struct sockaddr_un *address, socklen_t *length, int *fits)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	address->sun_family = AF_UNIX;
	int n = snprintf(address->sun_path, sizeof address->sun_path, "%s/control", dir && *dir ? dir : "/tmp/nvidia-mps");
	*fits = n < (int)sizeof address->sun_path;
	*length = sizeof *address;
}

/* Opens a socket to the control daemon. Returns -1 if no daemon listens or if the caller has no access. */
static int control(void)
{
	struct sockaddr_un address;
	socklen_t length;
	int fits;
	control_address(&address, &length, &fits);
	int fd = fits ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
	if (fd < 0)
		return -1;
	while (connect(fd, (struct sockaddr *)&address, length)) {
		if (errno == EINTR)
			continue;
		close(fd);
		return -1;
	}
	return fd;
}

static struct connection connection(void)
{
	return (struct connection){ control(), { -1, -1, -1, -1 } };
}

/* Receives the next packet as text. Returns its length; 0 at the end and on an error. */
static ssize_t receive(int socket, char *text, size_t size)
{
	ssize_t n;
	do
		n = recv(socket, text, size - 1, 0);
	while (n < 0 && errno == EINTR);
	text[n < 0 ? 0 : n] = '\0';
	return n < 0 ? 0 : n;
}

/* Receives the server's first answer. If the server accepts the connection, the pipes come with this answer. */
static ssize_t receive_pipes(struct connection *server, char *text, size_t size)
{
	char control[CMSG_SPACE(sizeof server->pipes)];
	struct iovec part = { text, size - 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	ssize_t n;
	do
		n = recvmsg(server->socket, &message, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	text[n < 0 ? 0 : n] = '\0';
	struct cmsghdr *header = n < 0 ? NULL : CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof server->pipes))
		memcpy(server->pipes, CMSG_DATA(header), sizeof server->pipes);
	return n < 0 ? 0 : n;
}

static int send_text(int socket, const char *text)
{
	return send(socket, text, strlen(text), MSG_NOSIGNAL) < 0 ? -1 : 0;
}

/* Ends a connection. The socket stays open for the thread that listens to it. */
void mps_leave(const struct connection *server)
{
	shutdown(server->socket, SHUT_RDWR);
	for (int i = 0; i < pipes_count; i++)
		close(server->pipes[i]);
}


/* Ends a context's connection. The server knows by the packet that the process lives on. */
void mps_drop(const struct connection *server)
{
	send_text(server->socket, "drop");
	mps_leave(server);
}

/* Sends a packet with an open file. */
static int send_file(int socket, const char *text, int file)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { (void *)text, strlen(text) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &file, sizeof file);
	return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

/* Gives the server a file with host memory. */
int mps_host(int file)
{
	return send_file(process.server.socket, "host", file) ? mps_rpc_failure : success;
}

/* Writes a line into the server's log, under this process's pid. */
void mps_log(const char *format, ...)
{
	char text[1024];
	int n = snprintf(text, sizeof text, "log ");
	va_list values;
	va_start(values, format);
	vsnprintf(text + n, sizeof text - (size_t)n, format, values);
	va_end(values);
	send_text(process.server.socket, text);
}

/* "GPU INSTANCE SMS TPC MIB LIMIT UUID NAME…" */
static int read_line(const char *line, double percentage, struct device *d)
{
	int tpc, sms;
	char limit[32];
	long mib;
	if (sscanf(line, "%d %d %d %d %d %31s %63s %95[^\n]", &d->gpu, &d->instance, &sms, &tpc, &d->mib, limit, d->uuid, d->name) != 8)
		return -1;
	d->sms = share_sms(sms, tpc > 0 ? tpc : 1, percentage);
	d->limit = devices_memory(limit, &mib) ? 0 : (int)mib;
	return 0;
}

/* Sorts the devices in PCI order, because the daemon's own order has no effect on its clients (measured). */
static int by_position(const void *a, const void *b)
{
	const struct device *one = a, *other = b;
	return one->gpu != other->gpu ? one->gpu - other->gpu : one->instance - other->instance;
}

/* Reads "ok PERCENTAGE PRIORITY PID" and a line for each device. Returns 0, or the error that the text names. The
 * pid is the process's pid as the server sees it, because the process may be in another pid namespace. */
static int read_greeting(char *text, struct devices *all)
{
	int error = mps_rpc_failure, priority;
	double server;
	char *rest = text, *line = strsep(&rest, "\n");
	if (sscanf(line, "err %d", &error) == 1 || sscanf(line, "ok %lf %d %d", &server, &priority, &process.pid) != 3)
		return error;
	double own = share_percentage(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
	process.percentage = own < server ? own : server; /* a client can only lower the server's percentage */
	for (all->count = 0; (line = strsep(&rest, "\n")) && all->count < devices_max; all->count++)
		if (read_line(line, process.percentage, &all->list[all->count]))
			return mps_rpc_failure;
	qsort(all->list, (size_t)all->count, sizeof *all->list, by_position);
	return success;
}

/* The real library first checks with one connection if the daemon listens. Then it opens the connection that it
 * uses. The daemon's log shows this. */
int mps_connect(struct devices *all)
{
	char text[packet_max];
	int probe = control();
	if (probe < 0)
		return 0;
	close(probe);
	struct connection server = connection();
	if (server.socket < 0)
		return 0;
	if (send_text(server.socket, "client 0") || !receive_pipes(&server, text, sizeof text)) {
		close(server.socket);
		return -mps_connection_failed;
	}
	int error = read_greeting(text, all);
	if (error) {
		mps_leave(&server);
		close(server.socket);
		return -error;
	}
	process.server = server;
	return mps_listen(server.socket, NULL) ? -mps_connection_failed : 1;
}

/* Asks for a context. memory is the file of the work page. Returns 0 or the error. */
int mps_open(struct CUctx_st *context, int memory)
{
	char text[256], answer[256] = "";
	int error = mps_rpc_failure;
	struct connection server = connection();
	if (server.socket < 0)
		return mps_rpc_failure;
	snprintf(text, sizeof text, "client %d", ++process.contexts_made);
	int lost = send_text(server.socket, text);
	snprintf(text, sizeof text, "open %s", context->device->uuid);
	lost = lost || send_file(server.socket, text, memory) || !receive_pipes(&server, answer, sizeof answer);
	if (lost || strcmp(answer, "ok")) {
		sscanf(answer, "err %d", &error);
		mps_leave(&server);
		close(server.socket);
		return lost ? mps_rpc_failure : error;
	}
	context->server = server;
	return mps_listen(server.socket, context) ? mps_rpc_failure : success;
}

/* Makes every later call return this error. The first error stays. */
void mps_fail(int error)
{
	pthread_mutex_lock(&process.mutex);
	if (!process.sticky)
		process.sticky = error;
	pthread_cond_broadcast(&process.changed);
	pthread_mutex_unlock(&process.mutex);
}

static void stall(void)
{
	pthread_mutex_lock(&process.mutex);
	process.stalled = 1;
	pthread_cond_broadcast(&process.changed);
	pthread_mutex_unlock(&process.mutex);
}

struct listener {
	int socket;
	struct CUctx_st *context;
};

/* Handles what the server sends without a question, and the end of the connection. When the server ends a context,
 * the client agrees first. terminate_client waits for this answer, so it waits while this process is stopped. */
static void *listen_to_server(void *argument)
{
	struct listener listener = *(struct listener *)argument;
	char text[256];
	int error, wanted = 0;
	free(argument);
	while (receive(listener.socket, text, sizeof text)) {
		if (sscanf(text, "fault %d", &error) == 1)
			mps_fail(error);
		if (!strcmp(text, "stall"))
			stall();
		if (!strcmp(text, "terminate")) {
			/* Agree before the program's own calls fail, because the program may exit at the first failed call. */
			send_text(listener.socket, "terminated");
			mps_fail(mps_terminated);
			wanted = 1;
			break;
		}
	}
	pthread_mutex_lock(&process.mutex);
	if (listener.context && listener.context->ended)
		wanted = 1;
	pthread_mutex_unlock(&process.mutex);
	if (!wanted)
		mps_fail(mps_rpc_failure);
	shutdown(listener.socket, SHUT_RDWR);
	return NULL;
}

/* Starts the thread that listens to the server. This thread takes no signals; they go to the program's own
 * threads. */
int mps_listen(int socket, struct CUctx_st *context)
{
	struct listener *listener = malloc(sizeof *listener);
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;
	if (!listener)
		return -1;
	*listener = (struct listener){ socket, context };
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	int error = pthread_create(&thread, &attributes, listen_to_server, listener);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		free(listener);
	return error;
}
