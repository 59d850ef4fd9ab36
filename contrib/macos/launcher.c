/* The executable of streamd.app: runs the menu in Python, and ends as it does.
 *
 * macOS asks for the microphone in the name of the program that was opened, with the text in that
 * program's Info.plist, for all that it starts. Python has no such text, so this program stays. As a
 * shell script it would be refused, or the question never asked (Kb2uka/openhpsdr-zeus #624,
 * omarshahine/apple-pim #110). make_app.py compiles it, and defines PYTHON as a string.
 */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

extern char **environ;
static pid_t child;

static void end(int number) { kill(child, number); }

int main(int n, char **own) {
    char menu[PATH_MAX];
    char *arguments[] = {PYTHON, menu, NULL};
    int status;
    (void)n;
    snprintf(menu, sizeof menu, "%s/../Resources/menu.py", dirname(own[0]));
    if (posix_spawn(&child, PYTHON, NULL, NULL, arguments, environ) != 0) return 127;
    signal(SIGTERM, end);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 127;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
